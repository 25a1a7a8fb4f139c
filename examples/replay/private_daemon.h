#ifndef KVIST_EXAMPLES_REPLAY_PRIVATE_DAEMON_H_
#define KVIST_EXAMPLES_REPLAY_PRIVATE_DAEMON_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvist::replay {

// A kvistd of our own, in a temporary directory that holds all it has: configuration, sockets, state and log.
//
// Lifecycle: Start (returns when it serves) -> Stop, or the destructor: it is asked to end, killed when it doesn't, and its directory is
//   removed. If this process dies first, the kernel asks the daemon to end.
// Threads:   one: the thread that called Start must live as long as the daemon is wanted (PR_SET_PDEATHSIG is about threads).
class PrivateDaemon {
 public:
  struct Options {
    uint64_t slots = 1;        // room for exactly so many chunks
    uint64_t chunk_bytes = 0;  // of one shard
    uint64_t ssd_slots = 0;    // room for so many on disk, segments rounded up; 0: no SSD tier
  };

  // Errors: NotFound          no kvistd: neither $KVISTD nor one beside this executable.
  //         DeadlineExceeded  it did not serve within 30 s.  Cancelled  a stop signal came.
  //         Unavailable       it ended at once; the message has the end of its log.
  static absl::StatusOr<std::unique_ptr<PrivateDaemon>> Start(const Options& options);
  ~PrivateDaemon();
  PrivateDaemon(const PrivateDaemon&) = delete;
  PrivateDaemon& operator=(const PrivateDaemon&) = delete;

  // Ends it. Errors: Internal  it did not end as it should; the message has the end of its log.
  absl::Status Stop();

  const std::string& socket() const { return socket_; }

 private:
  explicit PrivateDaemon(std::string directory);
  absl::Status WriteConfiguration(const Options& options) const;
  absl::Status Spawn(const std::string& program);
  absl::Status AwaitReady();
  std::string LogEnd() const;

  const std::string directory_;
  const std::string socket_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
  int output_ = -1;      // read end of its stdout
  std::string printed_;  // what it printed before READY
};

}  // namespace kvist::replay

#endif  // KVIST_EXAMPLES_REPLAY_PRIVATE_DAEMON_H_
