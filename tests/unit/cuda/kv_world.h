#ifndef KVIST_TESTS_UNIT_CUDA_KV_WORLD_H_
#define KVIST_TESTS_UNIT_CUDA_KV_WORLD_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cuda/copy_engine.h"
#include "cuda/kv_memory.h"
#include "storage/base/mapping.h"

namespace kvist::cuda {

using Rng = std::mt19937_64;

// How the regions' memfds are sealed, and so reached; kProcess: not as memfds at all, but as memory of a process, this one; kDevice: as
// memory of a GPU that has a fake driver, which reaches this process's memory as it would its own.
enum class Seal { kShrink, kNone, kMixed, kProcess, kDevice };

// A layout with a name for messages and the lengths of the regions that it needs.
struct NamedLayout {
  std::string name;
  KvLayout layout;
  std::vector<Bytes> region_lengths;
};

// The layouts that engines are known to have, and odd ones: pages of one segment, K and V in the page or apart, heads apart,
// gaps between pages, layers within pages, several regions, segments of 1, 17 and 4099 bytes, layers of several units.
std::vector<NamedLayout> KnownLayouts();
NamedLayout RandomLayout(Rng& rng);

// An engine's memory and some slots, with a second way to every byte: plain indexing by the formula of kv_memory.h. All of
// it is filled with random bytes, also what no page and no slot covers, so that a byte written outside shows when whole
// images are compared.
class KvWorld {
 public:
  KvWorld(const NamedLayout& named, Seal seal, uint32_t slot_count, uint64_t seed, Gpu* gpu = nullptr);

  const std::shared_ptr<KvMemory>& memory() const { return memory_; }
  const KvLayout& layout() const { return memory_->layouts[0]; }
  uint32_t layers() const { return static_cast<uint32_t>(layout().layers.size()); }
  uint32_t slot_count() const { return slot_count_; }
  std::byte* slot(uint32_t slot) { return slots_.data() + kGuard + slot * slot_stride_; }
  // The test's own descriptor of a region: what an engine keeps.
  int fd(uint32_t region) const { return engine_fds_[region].get(); }
  // Takes a region's memory away from the process; no Snapshot after that.
  void Unmap(uint32_t region);

  // A copy of all layers between `slots` and as many distinct random pages.
  Copy MakeCopy(OpId op, Direction direction, const std::vector<uint32_t>& slots, Rng& rng) const;

  // All bytes there are: the regions', then the slots'.
  struct Image {
    std::vector<std::vector<std::byte>> regions;
    std::vector<std::byte> slots;
    bool operator==(const Image& other) const;
  };
  Image Snapshot() const;
  // Does `copy` to `image` by plain loops.
  void Apply(const Copy& copy, Image* image) const;
  // Whether the copy's first `layers` layers are the same on both sides, here and now.
  bool LayersAreEqual(const Copy& copy, uint32_t layers) const;

 private:
  static constexpr uint64_t kGuard = 128;  // bytes between slots

  template <class Visit>  // visit(region, offset in it, offset in the slots)
  void ForEachSegment(const Copy& copy, uint32_t layers, Visit visit) const;

  std::shared_ptr<KvMemory> memory_;
  std::vector<UniqueFd> engine_fds_;
  std::vector<Mapping> engine_view_;
  uint32_t slot_count_;
  uint64_t slot_stride_;
  std::vector<std::byte> slots_;
  std::vector<std::shared_ptr<void>> pinned_;  // all of it, with a GPU; last: it ends first
};

// Collects the ends of copies.
class Ends {
 public:
  CopyEngine::Done Listener();

  // The copy's status; fails the test when it hasn't ended within a minute.
  absl::Status Wait(OpId op);
  CopyEnd WaitForEnd(OpId op);
  void WaitForCount(size_t count);
  std::vector<OpId> order() const;  // in which they came; an op that came twice is there twice

 private:
  mutable std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::pair<OpId, CopyEnd>> ends_;
};

// A LayerProgress that holds the thread which reports at `stop_at` or more layers until it is let go. It breaks the contract
// ("must not block") so that a test can act at a known moment.
class Gate final : public LayerProgress {
 public:
  explicit Gate(uint32_t stop_at) : stop_at_(stop_at) {}
  void LayersDone(uint32_t layers) override;
  void WaitUntilReached();
  void Open();
  uint32_t layers() const;

 private:
  const uint32_t stop_at_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t layers_ = 0;
  bool open_ = false;
};

}  // namespace kvist::cuda

#endif  // KVIST_TESTS_UNIT_CUDA_KV_WORLD_H_
