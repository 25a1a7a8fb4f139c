#ifndef KVIST_TESTS_SUPPORT_DELAYED_TIER_H_
#define KVIST_TESTS_SUPPORT_DELAYED_TIER_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "daemon/session/lower_tier.h"

namespace kvist::test {

// A tier below the slots that keeps its bytes in memory and takes its time to read them: a slow disk, or a remote store, as seen by who
// waits for it.
// Threads: as DiskTier; one of its own.
class DelayedTier final : public session::DiskTier {
 public:
  DelayedTier(absl::Duration read_delay, Ear* ear);
  ~DelayedTier() override;

  void Write(const core::SpaceSpec& space, core::WriteStarted write, Slots slots) override;
  void Read(std::vector<ChunkToRead> chunks) override;
  void Free(core::PlacesFreed freed) override;
  void Clear(const core::SpaceSpec* space, core::SpaceCleared cleared) override;
  void Hide(const core::SpaceSpec& space, core::ChunksHidden hidden) override;
  void NotePins(const core::SpaceSpec&, core::PinsNoted) override {}
  void NoteUses(core::UsesNoted) override {}

 private:
  void ReadOne(core::ReadStarted read, Slots slots);
  void At(absl::Time when, std::function<void()> what);
  void Loop();

  const absl::Duration read_delay_;
  Ear* const ear_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::multimap<absl::Time, std::function<void()>> due_;
  std::map<uint32_t, std::vector<std::byte>> bytes_;  // [unit]
  uint32_t units_ = 0;
  std::thread thread_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_DELAYED_TIER_H_
