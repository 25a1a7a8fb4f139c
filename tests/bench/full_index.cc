#include "tests/bench/full_index.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/status.h"
#include "tests/bench/random_keys.h"

namespace kvist::bench {
namespace {

// Copies nothing: there is no memory.
class InstantCopies final : public cuda::CopyEngine {
 public:
  explicit InstantCopies(Done done) : done_(std::move(done)) {}
  void Submit(cuda::Copy copy) override { done_(copy.op, {absl::OkStatus()}); }
  void Cancel(OpId) override {}
  void Arrived() override {}
  void Look() override {}

 private:
  const Done done_;
};

// A tier that has nothing and gets nothing, as a disk that is full.
class NothingBelow final : public session::DiskTier {
 public:
  explicit NothingBelow(Ear* ear) : ear_(*ear) {
    ear_.Say(core::DiskTold{});
    ear_.Say(core::DiskWritable{false});
  }
  void Write(const core::SpaceSpec&, core::WriteStarted, Slots) override { KVIST_CHECK(false); }
  void Read(std::vector<ChunkToRead>) override { KVIST_CHECK(false); }
  void Free(core::PlacesFreed) override {}
  void Clear(const core::SpaceSpec*, core::SpaceCleared cleared) override { ear_.Say(core::ClearKept{cleared.job}); }
  void Hide(const core::SpaceSpec&, core::ChunksHidden hidden) override { ear_.Say(core::ClearKept{hidden.job}); }
  void NotePins(const core::SpaceSpec&, core::PinsNoted) override {}
  void NoteUses(core::UsesNoted) override {}

 private:
  Ear& ear_;
};

constexpr uint64_t kPageBytes = 4096;
constexpr size_t kStoresAtOnce = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<FullIndex>> FullIndex::Create(uint64_t chunks, int reactor_cpu) {
  auto index = std::make_unique<FullIndex>();
  KVIST_ASSIGN_OR_RETURN(index->memory_, EngineMemory::Create({.page_bytes = kPageBytes}));
  daemon::Options options;
  options.pool.bytes = AlignUp(cuda::SlotBytesFor({kPageBytes}) * (chunks + kChainChunks) + MiB(64), MiB(64));
  options.pool.slab_bytes = MiB(64);
  options.lease.share = 1;
  options.session.reactor_cpu = reactor_cpu;
  daemon::Parts parts;
  parts.pool_without_memory = true;
  parts.copy_engine = [](cuda::CopyEngine::Done done) { return std::make_unique<InstantCopies>(std::move(done)); };
  parts.disk_tier = [](session::LowerTier::Ear* ear) { return std::make_unique<NothingBelow>(ear); };
  KVIST_ASSIGN_OR_RETURN(index->daemon_, DaemonUnderTest::Start(options, std::move(parts)));
  KVIST_ASSIGN_OR_RETURN(index->scheduler_, index->memory_->Connect(index->daemon_->socket(), KVIST_SCHEDULER));
  KVIST_ASSIGN_OR_RETURN(index->worker_, index->memory_->Connect(index->daemon_->socket(), KVIST_WORKER));
  return index;
}

absl::Status FullIndex::AwaitAll(std::span<const kvist_op> stores) {
  for (const kvist_op op : stores) {
    const kvist_result result = worker_.Wait(op, 10'000'000);
    if (result.status != KVIST_OK || result.chunks_copied != kTurnChunks) {
      return absl::InternalError(
          absl::StrCat("a store of ", kTurnChunks, " chunks copied ", result.chunks_copied, ": ", kvist_error()));
    }
  }
  return absl::OkStatus();
}

absl::Status FullIndex::Fill(uint64_t chunks) {
  chains_.resize((chunks + kChainChunks - 1) / kChainChunks);
  for (std::vector<kvist_key>& chain : chains_) chain = RandomKeys(random_, kChainChunks);
  const std::vector<uint32_t> pages(kTurnChunks, 0);
  std::vector<kvist_op> ops;
  for (uint32_t first = 0; first < kChainChunks; first += kTurnChunks) {
    std::ranges::shuffle(chains_, random_);
    for (size_t i = 0; i < chains_.size(); ++i) {
      ops.push_back(worker_.Store(std::span(chains_[i]).first(first + kTurnChunks), first, pages));
      if (ops.back() == 0) return absl::InternalError(absl::StrCat("a store did not start: ", kvist_error()));
      if (ops.size() < kStoresAtOnce && i + 1 < chains_.size()) continue;
      KVIST_RETURN_IF_ERROR(AwaitAll(ops));
      ops.clear();
    }
  }
  KVIST_ASSIGN_OR_RETURN(const rpc::NodeStatus status, daemon_->Status());
  if (status.spaces.empty() || status.spaces[0].chunks < chunks || status.evictions != 0)
    return absl::InternalError(absl::StrCat("the index was to have ", chunks, " chunks, and nothing evicted"));
  return absl::OkStatus();
}

}  // namespace kvist::bench
