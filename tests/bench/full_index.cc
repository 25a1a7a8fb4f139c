#include "tests/bench/full_index.h"

#include <utility>

#include "absl/strings/str_cat.h"
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

 private:
  const Done done_;
};

constexpr uint64_t kPageBytes = 4096;

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
  KVIST_ASSIGN_OR_RETURN(index->daemon_, DaemonUnderTest::Start(options, std::move(parts)));
  KVIST_ASSIGN_OR_RETURN(index->scheduler_, index->memory_->Connect(index->daemon_->socket(), KVIST_SCHEDULER));
  KVIST_ASSIGN_OR_RETURN(index->worker_, index->memory_->Connect(index->daemon_->socket(), KVIST_WORKER));
  return index;
}

absl::Status FullIndex::Fill(uint64_t chunks) {
  chains_.resize((chunks + kChainChunks - 1) / kChainChunks);
  const std::vector<uint32_t> pages(kChainChunks, 0);
  for (std::vector<kvist_key>& chain : chains_) {
    chain = RandomKeys(random_, kChainChunks);
    const kvist_op op = worker_.Store(chain, 0, pages);
    if (op == 0) return absl::InternalError(absl::StrCat("a store did not start: ", kvist_error()));
    const kvist_result result = worker_.Wait(op, 10'000'000);
    if (result.status != KVIST_OK || result.chunks_copied != kChainChunks) {
      return absl::InternalError(
          absl::StrCat("a store of ", kChainChunks, " chunks copied ", result.chunks_copied, ": ", kvist_error()));
    }
  }
  KVIST_ASSIGN_OR_RETURN(const rpc::NodeStatus status, daemon_->Status());
  if (status.spaces.empty() || status.spaces[0].chunks < chunks || status.evictions != 0)
    return absl::InternalError(absl::StrCat("the index was to have ", chunks, " chunks, and nothing evicted"));
  return absl::OkStatus();
}

}  // namespace kvist::bench
