#ifndef KVIST_DAEMON_CORE_REMOTE_NAMES_H_
#define KVIST_DAEMON_CORE_REMOTE_NAMES_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "daemon/core/jobs.h"
#include "storage/base/ids.h"

namespace kvist::core {

// What the store beyond the node was asked to do with names and hasn't done yet: what is being written to it, and what it shall forget. By
// name, not by chunk: one that is detached may be written beside another of its name. What it will forget is neither written nor found there.
// Each operation is O(log n). Threads: one.
class RemoteNames {
 public:
  using Name = std::pair<SpaceId, ChunkKey>;

  // ---- Writes
  // Of a name that it will not forget. `serial` tells the write from what was cleared before or after it.
  void WriteBegan(const Name& name, uint64_t serial);
  // One of the name's writes has ended, well or not: what failed may be there, too.
  struct Ended {
    uint64_t serial = 0;                 // of the name's last write
    std::vector<JobId> forget_for = {};  // the store is to forget it now, once for each
  };
  Ended WriteEnded(const Name& name);
  // All that is being written of this name is to be forgotten when it has been, for this job. How many forgettings the job will wait for: none when
  // nothing is being written, or when it has said so before.
  uint32_t Doom(const Name& name, JobId job);

  // ---- Forgetting
  // It is told to forget the name, and has, or never will: each such pair counts. One that a core before began may end here, too.
  void ForgetBegan(const Name& name) { ++forgets_[name]; }
  void ForgetEnded(const Name& name);
  // A clear of a prompt has this name: what hangs on the prompt's first chunk, which is hidden at once, is hidden only later. Were it written
  // meanwhile, and evicted here, nobody would know that it has to be forgotten.
  void ClearBegan(const Name& name) { ++clears_[name]; }
  void ClearEnded(const Name& name);

  bool IsBeingCleared(const Name& name) const { return clears_.contains(name); }
  // Now or soon: what is written meanwhile may be forgotten, too.
  bool WillForget(const Name& name) const {
    return forgets_.contains(name) || doomed_.contains(name) || IsBeingCleared(name);
  }
  void CheckInvariants() const;

 private:
  struct Writes {
    uint32_t count = 0;
    uint64_t serial = 0;  // of the last
  };
  struct Doomed {
    JobId job;
    uint32_t writes = 0;  // that haven't ended
  };
  std::map<Name, Writes> writes_;
  std::map<Name, std::vector<Doomed>> doomed_;  // of those that are being written
  std::map<Name, uint32_t> forgets_;
  std::map<Name, uint32_t> clears_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_REMOTE_NAMES_H_
