// How many tokens a chunk should have. Smaller chunks lose fewer tokens at the end of a turn; larger ones need less of an index and of the
// core, and are copied in longer runs.
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/core/core.h"
#include "examples/replay/trace.h"
#include "storage/base/status.h"
#include "tests/bench/daemon_under_test.h"
#include "tests/bench/engine_memory.h"
#include "tests/bench/policy_replay.h"
#include "tests/bench/random_keys.h"
#include "tests/bench/shared_tokens.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"
#include "tests/bench/traces.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kSizes[] = {64, 128, 256, 512};  // tokens
constexpr uint32_t kLargest = 512;                  // the limit in each case: what a smaller one costs
constexpr uint32_t kTokensOfPage = 16;
constexpr uint64_t kQuickTraceRequests = 300;
constexpr uint64_t kCoreTokens = 80'000'000;  // of a trace, through the core: some seconds at 64 tokens

// A chunk's name in a trace of blocks: the part of a block; what is behind the last full block is the request's own.
PolicyRequest InChunks(const replay::Request& request, size_t number, uint32_t size) {
  PolicyRequest chunks;
  const uint64_t count = std::min<uint64_t>(request.tokens / size, core::Core::kKeysMax);
  const uint64_t parts = replay::kBlockTokens / size;
  for (uint64_t k = 0; k < count; ++k) {
    const uint64_t block = k / parts;
    const bool full = block < request.full_blocks;
    chunks.blocks.push_back((full ? request.hash_ids[block] : (uint64_t{1} << 40) + number) * parts + k % parts);
  }
  return chunks;
}

struct Figures {
  double found = 0;        // % of the prompts' tokens
  double lost = 0;         // tokens at the end of what a turn shares with the one before
  double index_bytes = 0;  // for 1,000 tokens
  double core_nanos = 0;   // for 1,000 tokens: a lookup, and the store of what wasn't there
};

Figures Measure(const replay::Trace& trace, const std::vector<SharedTokens>& shared, uint32_t size) {
  Figures figures;
  uint64_t all = 0, found = 0, lost = 0, turns = 0;
  for (const SharedTokens& request : shared) {
    const uint64_t there = std::min<uint64_t>(request.shared / size, core::Core::kKeysMax) * size;
    all += request.tokens;
    found += there;
    lost += request.goes_on ? request.shared - there : 0;
    turns += request.goes_on ? 1 : 0;
  }
  figures.found = 100.0 * static_cast<double>(found) / static_cast<double>(all);
  figures.lost = static_cast<double>(lost) / static_cast<double>(std::max<uint64_t>(turns, 1));

  std::vector<PolicyRequest> requests;
  absl::flat_hash_set<uint64_t> unique;
  uint64_t tokens = 0;
  for (size_t i = 0; i < trace.requests.size() && tokens < kCoreTokens; ++i) {
    requests.push_back(InChunks(trace.requests[i], i, size));
    unique.insert(requests.back().blocks.begin(), requests.back().blocks.end());
    tokens += requests.back().blocks.size() * size;
  }
  const PolicyOutcome outcome = ReplayPolicy(requests, unique.size(), core::CoreOptions{}.eviction);
  figures.index_bytes = 1000.0 * static_cast<double>(outcome.memory_bytes) / static_cast<double>(unique.size() * size);
  figures.core_nanos = 1e12 * outcome.seconds / static_cast<double>(tokens);
  return figures;
}

// The best that chunks of whole pages, replaced by fuller ones later, could do.
double LostWithPartialTails(const std::vector<SharedTokens>& shared) {
  uint64_t lost = 0, turns = 0;
  for (const SharedTokens& request : shared) {
    lost += request.goes_on ? request.shared % kTokensOfPage : 0;
    turns += request.goes_on ? 1 : 0;
  }
  return static_cast<double>(lost) / static_cast<double>(std::max<uint64_t>(turns, 1));
}

absl::Status MeasureTrace(const std::string& name, const replay::Trace& trace, Report* report) {
  const std::vector<SharedTokens> shared = FindSharedTokens(trace);
  const Figures largest = Measure(trace, shared, kLargest);
  absl::StrAppendFormat(&report->notes, "%s\n%8s  %12s  %22s  %22s  %20s\n", name, "tokens", "found, %",
                        "tokens lost a turn", "index bytes a 1,000", "core us a 1,000");
  for (const uint32_t size : kSizes) {
    const Figures figures = size == kLargest ? largest : Measure(trace, shared, size);
    const std::string of = absl::StrCat(name, ", ", size, " tokens: ");
    report->cases.push_back({of + "prompt tokens found", figures.found, "%", largest.found, Better::kHigher, {}});
    report->cases.push_back({of + "tail lost a turn", figures.lost, "tokens", largest.lost, Better::kLower, {}});
    report->cases.push_back(
        {of + "index a 1,000 tokens", figures.index_bytes, "bytes", largest.index_bytes, Better::kLower, {}});
    report->cases.push_back({of + "core a 1,000 tokens", figures.core_nanos, "ns", largest.core_nanos, Better::kLower, {}});
    absl::StrAppendFormat(&report->notes, "%8d  %12.2f  %22.1f  %22.0f  %20.2f\n", size, figures.found, figures.lost,
                          figures.index_bytes, figures.core_nanos * 1e-3);
  }
  absl::StrAppendFormat(&report->notes, "%8s  %12s  %22.1f\n\n", "pages", "", LostWithPartialTails(shared));
  return absl::OkStatus();
}

// Loads of the same tokens in chunks of one size.
class Loads {
 public:
  static absl::StatusOr<std::unique_ptr<Loads>> Create(uint32_t size, uint64_t tokens) {
    constexpr uint32_t kLayersLoaded = 8;
    constexpr uint64_t kLayerOfPage = uint64_t{16}
                                      << 10;  // of a layer: 1 KiB a token, 8 heads of 128 over 4 ranks in 16 bits
    auto loads = std::unique_ptr<Loads>(new Loads);
    const EngineMemory::Shape shape{.layers = kLayersLoaded,
                                    .pages = static_cast<uint32_t>(tokens / kTokensOfPage),
                                    .pages_per_chunk = size / kTokensOfPage,
                                    .page_bytes = kLayerOfPage};
    loads->bytes_ = static_cast<double>(shape.chunk_bytes() * (tokens / size));
    KVIST_ASSIGN_OR_RETURN(loads->memory_, EngineMemory::Create(shape));
    daemon::Options options;
    options.pool.slab_bytes = MiB(64);
    options.pool.bytes = AlignUp(Bytes{shape.chunk_bytes() * (tokens / size)} + MiB(64), MiB(64));
    options.lease.share = 1;
    KVIST_ASSIGN_OR_RETURN(loads->daemon_, DaemonUnderTest::Start(options));
    KVIST_RETURN_IF_ERROR(loads->daemon_->AwaitTouched());
    KVIST_ASSIGN_OR_RETURN(loads->client_, loads->memory_->Connect(loads->daemon_->socket(), KVIST_WORKER));
    std::mt19937_64 random(size);
    loads->pages_.resize(shape.pages);
    std::iota(loads->pages_.begin(), loads->pages_.end(), 0u);
    std::ranges::shuffle(loads->pages_, random);
    loads->keys_ = RandomKeys(random, static_cast<uint32_t>(tokens / size));
    const kvist_op op = loads->client_.Store(loads->keys_, 0, loads->pages_);
    if (op == 0 || loads->client_.Wait(op, kTimeoutUs).chunks_copied != loads->keys_.size())
      return absl::InternalError(absl::StrCat("storing ", size, " tokens a chunk: ", kvist_error()));
    return loads;
  }
  // GB/s, from the lookup to the last byte.
  absl::StatusOr<double> Load() {
    const double start = Now();
    const kvist::Hit hit = client_.Lookup(keys_, kTimeoutUs);
    const kvist_op op = hit.lease ? client_.Load(hit.lease, 0, hit.chunks, pages_) : 0;
    if (op == 0 || client_.Wait(op, kTimeoutUs).chunks_copied != keys_.size())
      return absl::InternalError(absl::StrCat("a load of stored chunks: ", kvist_error()));
    return bytes_ / (Now() - start) * 1e-9;
  }

 private:
  static constexpr int64_t kTimeoutUs = 30'000'000;
  Loads() = default;
  std::unique_ptr<EngineMemory> memory_;
  std::unique_ptr<DaemonUnderTest> daemon_;
  kvist::Client client_;
  std::vector<uint32_t> pages_;
  std::vector<kvist_key> keys_;
  double bytes_ = 0;
};

absl::Status MeasureCopies(const Settings& settings, Report* report) {
  const uint64_t tokens = settings.quick ? 2048 : 16384;  // 16 and 128 MiB
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<Loads> largest, Loads::Create(kLargest, tokens));
  for (const uint32_t size : kSizes) {
    if (size == kLargest) continue;
    KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<Loads> loads, Loads::Create(size, tokens));
    KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs,
                           Alternate(
                               0.3 * settings.time, [&] { return loads->Load(); }, [&] { return largest->Load(); }));
    const Pair rates = MedianByRatio(pairs);
    report->cases.push_back({absl::StrCat("load of ", tokens, " tokens in chunks of ", size, " beside ", kLargest),
                             rates.product,
                             "GB/s",
                             rates.limit,
                             Better::kHigher,
                             {}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunGranularity(const Settings& settings, Report* report) {
  KVIST_ASSIGN_OR_RETURN(const std::filesystem::path folder, TraceFolder());
  for (const char* name : {"conversation_dev", "weka_cc_dev"}) {
    KVIST_ASSIGN_OR_RETURN(const replay::Trace trace, replay::ReadTrace((folder / absl::StrCat(name, ".jsonl.gz")).string(),
                                                                        settings.quick ? kQuickTraceRequests : UINT64_MAX));
    KVIST_RETURN_IF_ERROR(MeasureTrace(name, trace, report));
  }
  return MeasureCopies(settings, report);
}

}  // namespace kvist::bench
