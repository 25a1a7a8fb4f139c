#ifndef KVIST_TESTS_SUPPORT_SIM_DISK_H_
#define KVIST_TESTS_SUPPORT_SIM_DISK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/mapping.h"
#include "storage/ssd/device.h"
#include "tests/sim/prng.h"

namespace kvist::test {

// What a disk's memory keeps over a crash, and the disk itself: files in memory, in which what hasn't been synced may be lost. With a
// directory they are also segment files there, for whoever reads those.
struct SimFiles {
  SimFiles() = default;
  explicit SimFiles(std::string in) : directory(std::move(in)) {}

  static constexpr uint64_t kSector = 512;
  struct Unsynced {
    std::vector<std::byte> before;  // the sector as it was last synced
    uint64_t written = 0;           // number of the write
  };
  struct File {
    std::span<std::byte> bytes;
    std::map<uint64_t, Unsynced> unsynced;  // by sector
    std::vector<std::byte> memory;          // where `bytes` are: here,
    Mapping mapping;                        // or in a file
  };
  File& Make(uint32_t segment, uint64_t bytes);

  const std::string directory;
  std::map<uint32_t, File> files;
  uint64_t writes = 0;  // done
  // Segments of which a write or a sync has said that it failed.
  std::set<uint32_t> failed;
  bool forgets_syncs = false;  // says OK and has nothing done
  struct Injected {
    uint64_t errors = 0;
    uint64_t lies = 0;  // writes that said OK
    uint64_t read_lies = 0;
    uint64_t no_space = 0;
  } injected;

  // The power fails: of each unsynced sector the old or the new bytes stay.
  void Crash(sim::Prng* prng);
};

// A device that is simulated, from a seed: operations end in any order, one or more with each Wait, and some go wrong. In permille of
// the operations of a kind.
class SimDisk final : public ssd::Device {
 public:
  struct Faults {
    uint32_t read_error = 0;          // EIO
    uint32_t write_error = 0;         // EIO, after a part of it
    uint32_t sync_error = 0;          // EIO, and some of what was to be synced is lost, whatever a later sync says
    uint32_t torn = 0;                // says OK after some sectors
    uint32_t misdirected = 0;         // says OK and was written elsewhere in the file
    uint32_t dropped = 0;             // says OK and wasn't written
    uint32_t flipped = 0;             // a read says OK and has a wrong bit
    uint32_t unread = 0;              // a read says OK and has left the memory as it was
    uint32_t files_max = UINT32_MAX;  // no more can be made,
    int no_file = ENOSPC;             // by this errno
  };
  SimDisk(SimFiles* files, uint64_t segment_bytes, sim::Prng* prng)
      : Device({"simulated", {}, true}), files_(*files), segment_bytes_(segment_bytes), prng_(*prng) {}

  void Submit(const ssd::Io& io) override;
  void Wait(absl::Time until, std::vector<ssd::Completion>* ended) override;
  void Kick() override {}
  void Wake() override { woken_ = true; }
  void Remove(uint32_t segment) override;
  // Called by a Wait with nothing in flight and no time at which it would end: with real disks that may take for ever.
  std::function<void()> before_sleep;
  // Whoever calls Wait would wait there, and does since the last one.
  bool Sleeps(absl::Time now) const { return pending_.empty() && !woken_ && now < until_; }
  uint32_t depth() const override { return 64; }
  absl::Status Register(std::span<std::byte>) override { return absl::OkStatus(); }

  // The power fails: what is in flight may be done in part; nothing ends any more.
  void Crash();
  // The process dies: what is in flight may still be done, and nothing is lost.
  void Die();
  void set_faults(const Faults& faults) { faults_ = faults; }
  const SimFiles::Injected& injected() const { return files_.injected; }
  size_t in_flight() const { return pending_.size(); }

 private:
  struct Pending {
    ssd::Io io;
    uint64_t covers = 0;  // of a sync: writes that had ended when it was submitted
  };
  int Do(const Pending& pending);
  int Write(const ssd::Io& io);
  int Sync(const Pending& pending);
  void Put(SimFiles::File* file, uint64_t offset, std::span<const std::byte> bytes);
  bool Chance(uint32_t permille) { return permille > 0 && prng_.Below(1000) < permille; }

  SimFiles& files_;
  const uint64_t segment_bytes_;
  sim::Prng& prng_;
  Faults faults_;
  std::vector<Pending> pending_;
  bool woken_ = true;
  absl::Time until_ = absl::InfinitePast();
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_SIM_DISK_H_
