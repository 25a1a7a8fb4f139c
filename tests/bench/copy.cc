// Stores and loads through the whole stack beside a hand-written loop that moves the same bytes between the same regions with as
// many threads.
//
// A store puts chunks of scattered pages into new slots (others are evicted for them); the loop then copies the same pages to the
// same slots. A load brings them back into the same scattered pages. The loop is given its list of moves, its kernel is the best of
// several for this page size and direction, and its threads spin in readiness: whatever the product does besides copying is the
// difference.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cuda/shared_memory_engine.h"
#include "storage/base/status.h"
#include "tests/bench/copy_loop.h"
#include "tests/bench/daemon_under_test.h"
#include "tests/bench/engine_memory.h"
#include "tests/bench/random_keys.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kLayers = 8;
constexpr uint32_t kPagesPerChunk = 16;
constexpr double kGoal = 0.85;
constexpr int64_t kTimeoutUs = 30'000'000;

// Where the product copied to and from last.
class LastCopy {
 public:
  void Note(const cuda::Copy& copy) {
    absl::MutexLock lock(&mutex_);
    slots_ = copy.slots;
    memory_ = copy.memory;
  }
  std::vector<std::byte*> slots() const {
    absl::MutexLock lock(&mutex_);
    return slots_;
  }
  // The engine's memory: the daemon's mapping of it, or where the process has it, which is this one.
  std::byte* region() const {
    absl::MutexLock lock(&mutex_);
    const cuda::EngineRegion::Way& way = memory_->regions[0].way();
    if (const auto* process = std::get_if<cuda::ProcessRegion>(&way)) return process->At({0});
    return std::get<cuda::MappedRegion>(way).mapping.data();
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::byte*> slots_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const cuda::KvMemory> memory_ ABSL_GUARDED_BY(mutex_);
};

// The product's copy engine, watched.
class WatchedEngine final : public cuda::CopyEngine {
 public:
  WatchedEngine(std::unique_ptr<cuda::CopyEngine> engine, LastCopy* last) : engine_(std::move(engine)), last_(*last) {}
  void Submit(cuda::Copy copy) override {
    last_.Note(copy);
    engine_->Submit(std::move(copy));
  }
  void Cancel(OpId op) override { engine_->Cancel(op); }
  void Arrived() override { engine_->Arrived(); }
  void Look() override { engine_->Look(); }

 private:
  const std::unique_ptr<cuda::CopyEngine> engine_;
  LastCopy& last_;
};

// How the product reaches the engine's memory, and the loop does.
enum class Way { kMapped, kProcessVm };

// An engine with pages of one size, its daemon, and the loop.
class CopyBench {
 public:
  static absl::StatusOr<std::unique_ptr<CopyBench>> Create(uint64_t page_bytes, uint64_t batch_bytes, Way way) {
    auto bench = std::unique_ptr<CopyBench>(new CopyBench);
    bench->way_ = way;
    EngineMemory::Shape shape{.layers = kLayers,
                              .pages_per_chunk = kPagesPerChunk,
                              .page_bytes = page_bytes,
                              .in_process = way == Way::kProcessVm};
    bench->chunks_ = static_cast<uint32_t>(std::max<uint64_t>(2, batch_bytes / shape.chunk_bytes()));
    shape.pages = bench->chunks_ * kPagesPerChunk;
    KVIST_ASSIGN_OR_RETURN(bench->memory_, EngineMemory::Create(shape));

    daemon::Options options;
    options.pool.slab_bytes = MiB(64);
    // Three batches: stores evict what the last ones have left, as in a pool that has been in use for a while.
    options.pool.bytes = AlignUp(Bytes{3 * batch_bytes} + MiB(64), MiB(64));
    options.lease.share = 1;
    daemon::Parts parts;
    parts.copy_engine = [&last = bench->last_, threads = options.copy.threads](cuda::CopyEngine::Done done) {
      return std::make_unique<WatchedEngine>(cuda::MakeSharedMemoryEngine({threads, {}}, std::move(done)), &last);
    };
    KVIST_ASSIGN_OR_RETURN(bench->daemon_, DaemonUnderTest::Start(options, std::move(parts)));
    KVIST_RETURN_IF_ERROR(bench->daemon_->AwaitTouched());
    KVIST_ASSIGN_OR_RETURN(bench->client_, bench->memory_->Connect(bench->daemon_->socket(), KVIST_WORKER));
    bench->loop_ = std::make_unique<CopyLoop>(options.copy.threads);
    bench->pages_.resize(shape.pages);
    std::iota(bench->pages_.begin(), bench->pages_.end(), 0u);
    std::ranges::shuffle(bench->pages_, bench->random_);
    return bench;
  }

  uint32_t chunks() const { return chunks_; }
  // Among which the best is the limit.
  std::vector<PageKernel> Kernels(bool store) const {
    if (way_ == Way::kMapped) return NontemporalKernels();
    return store ? ProcessVmReadKernels() : ProcessVmWriteKernels();
  }
  std::string Prefix() const { return way_ == Way::kProcessVm ? "process_vm " : ""; }
  double BytesOf(uint32_t chunks) const { return static_cast<double>(memory_->shape().chunk_bytes() * chunks); }

  // Product: seconds to store or load chunks [first, first + count) of the block table. A store gives them new keys.
  absl::StatusOr<double> Store(uint32_t first, uint32_t count) {
    keys_ = RandomKeys(random_, count);
    const double start = Now();
    const kvist_op op = client_.Store(keys_, 0, Pages(first, count));
    if (op == 0) return NotBegun("store", count);
    const kvist_result result = client_.Wait(op, kTimeoutUs);
    const double seconds = Now() - start;
    if (result.status != KVIST_OK || result.chunks_copied != count) return Failed("store", count, result);
    return seconds;
  }
  // Of what was stored last, into the pages from which it came.
  absl::StatusOr<double> Load(uint32_t first, uint32_t count) {
    const kvist::Hit hit = client_.Lookup(keys_, kTimeoutUs);
    if (hit.chunks != keys_.size() || !hit.lease)
      return absl::InternalError(absl::StrCat("a lookup of stored chunks found ", hit.chunks));
    const double start = Now();
    const kvist_op op = client_.Load(hit.lease, first, count, Pages(first, count));
    if (op == 0) return NotBegun("load", count);
    const kvist_result result = client_.Wait(op, kTimeoutUs);
    const double seconds = Now() - start;
    if (result.status != KVIST_OK || result.chunks_copied != count) return Failed("load", count, result);
    return seconds;
  }

  // Limit: seconds to do the same between the same pages and the slots of a store of all chunks (`slots`).
  struct Plan {
    std::vector<Move> moves;
    PageKernel kernel;
  };
  double RunLoop(const Plan& plan) {
    loop_->Ready();
    const double start = Now();
    loop_->Run(plan.moves, memory_->shape().page_bytes, plan.kernel);
    return Now() - start;
  }
  enum class Order { kByLayer, kByChunk };
  std::vector<Move> Moves(std::span<std::byte* const> slots, uint32_t first, uint32_t count, bool store, Order order) const {
    std::vector<Move> moves;
    const EngineMemory::Shape& shape = memory_->shape();
    std::byte* region = last_.region();
    const auto add = [&](uint32_t chunk, uint32_t layer) {
      for (uint32_t i = 0; i < kPagesPerChunk; ++i) {
        std::byte* page = region + (uint64_t{layer} * shape.pages + pages_[chunk * kPagesPerChunk + i]) * shape.page_bytes;
        std::byte* slot = slots[chunk] + kSlotHeaderBytes.value + (uint64_t{layer} * kPagesPerChunk + i) * shape.page_bytes;
        moves.push_back(store ? Move{slot, page} : Move{page, slot});
      }
    };
    if (order == Order::kByLayer) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (uint32_t chunk = first; chunk < first + count; ++chunk) add(chunk, layer);
      }
    } else {
      for (uint32_t chunk = first; chunk < first + count; ++chunk) {
        for (uint32_t layer = 0; layer < kLayers; ++layer) add(chunk, layer);
      }
    }
    return moves;
  }
  std::vector<std::byte*> slots() const { return last_.slots(); }

  // Stores pages of known content, spoils them, and loads them: whether the product copies at all what it is timed for.
  absl::Status CheckBytes() {
    const EngineMemory::Shape& shape = memory_->shape();
    const auto content = [](uint32_t layer, uint32_t page) { return static_cast<int>((layer * 131 + page * 7 + 5) % 251); };
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t page = 0; page < shape.pages; ++page)
        std::memset(memory_->Page(layer, page), content(layer, page), shape.page_bytes);
    }
    KVIST_RETURN_IF_ERROR(Store(0, chunks_).status());
    std::memset(memory_->Page(0, 0), 255, shape.page_bytes * shape.pages * kLayers);
    KVIST_RETURN_IF_ERROR(Load(0, chunks_).status());
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t page = 0; page < shape.pages; ++page) {
        const std::byte* bytes = memory_->Page(layer, page);
        if (bytes[0] != static_cast<std::byte>(content(layer, page)) ||
            std::memcmp(bytes, bytes + 1, shape.page_bytes - 1) != 0) {
          return absl::DataLossError(
              absl::StrCat("page ", page, " of layer ", layer, " came back with other bytes than were stored"));
        }
      }
    }
    return absl::OkStatus();
  }

  std::mt19937_64& random() { return random_; }

 private:
  CopyBench() = default;

  std::span<const uint32_t> Pages(uint32_t first, uint32_t count) const {
    return std::span(pages_).subspan(size_t{first} * kPagesPerChunk, size_t{count} * kPagesPerChunk);
  }
  static absl::Status NotBegun(const char* what, uint32_t count) {
    return absl::InternalError(absl::StrCat("a ", what, " of ", count, " chunks didn't begin: ", kvist_error()));
  }
  static absl::Status Failed(const char* what, uint32_t count, const kvist_result& result) {
    return absl::InternalError(absl::StrCat("a ", what, " of ", count, " chunks copied ", result.chunks_copied, ": ",
                                            kvist_status_name(result.status), ": ", kvist_error()));
  }

  Way way_ = Way::kMapped;
  LastCopy last_;
  std::unique_ptr<EngineMemory> memory_;
  std::unique_ptr<DaemonUnderTest> daemon_;
  kvist::Client client_;
  std::unique_ptr<CopyLoop> loop_;
  uint32_t chunks_ = 0;
  std::mt19937_64 random_{1};
  std::vector<uint32_t> pages_;  // block table of all chunks
  std::vector<kvist_key> keys_;  // stored last
};

// The fastest kernel, and the order in which it is fastest.
struct Best {
  PageKernel kernel;
  CopyBench::Order order = CopyBench::Order::kByLayer;
};
Best FindBest(CopyBench& bench, bool store, std::span<const PageKernel> kernels) {
  const auto seconds_of = [&](const PageKernel& kernel, CopyBench::Order order) {
    const CopyBench::Plan plan{bench.Moves(bench.slots(), 0, bench.chunks(), store, order), kernel};
    std::vector<double> seconds;
    for (int i = 0; i < 3; ++i) seconds.push_back(bench.RunLoop(plan));
    return Quantile(std::move(seconds), 0.5);
  };
  Best best;
  double best_seconds = 1e9;
  for (const PageKernel& kernel : kernels) {
    if (const double seconds = seconds_of(kernel, CopyBench::Order::kByLayer); seconds < best_seconds) {
      best_seconds = seconds;
      best.kernel = kernel;
    }
  }
  if (seconds_of(best.kernel, CopyBench::Order::kByChunk) < best_seconds) best.order = CopyBench::Order::kByChunk;
  return best;
}

// A pair's seconds as GB/s.
Pair Rates(const Pair& seconds, double bytes) { return {bytes / seconds.product * 1e-9, bytes / seconds.limit * 1e-9}; }

absl::Status MeasureDirection(const Settings& settings, uint64_t page_kib, bool store, CopyBench& bench, Report* report) {
  const std::string what = bench.Prefix() + (store ? "store" : "load");
  KVIST_RETURN_IF_ERROR(bench.Store(0, bench.chunks()).status());
  const std::vector<PageKernel> kernels = bench.Kernels(store);
  const Best best = FindBest(bench, store, kernels);
  std::fprintf(stderr, "%s of %d KiB pages: the loop is %s, %s\n", what.c_str(), static_cast<int>(page_kib),
               std::string(best.kernel.name).c_str(), best.order == CopyBench::Order::kByLayer ? "by layer" : "by chunk");

  // Batches of everything. The loop has the slots of the last store, which the product's next store leaves behind.
  CopyBench::Plan plan{bench.Moves(bench.slots(), 0, bench.chunks(), store, best.order), best.kernel};
  const Slice product = [&]() -> absl::StatusOr<double> {
    if (!store) return bench.Load(0, bench.chunks());
    KVIST_ASSIGN_OR_RETURN(const double seconds, bench.Store(0, bench.chunks()));
    plan.moves = bench.Moves(bench.slots(), 0, bench.chunks(), store, best.order);
    return seconds;
  };
  const Slice limit = [&]() -> absl::StatusOr<double> { return bench.RunLoop(plan); };
  KVIST_RETURN_IF_ERROR(Alternate(absl::ZeroDuration(), product, limit).status());  // warm
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs, Alternate(0.09 * settings.time, product, limit));
  const Pair batch = Rates(MedianByRatio(pairs), bench.BytesOf(bench.chunks()));
  // On a busy machine these say what both can do when nobody disturbs them.
  const auto fastest = [&](double Pair::*figure) { return std::ranges::min(pairs, {}, figure).*figure; };
  const Pair undisturbed = Rates({fastest(&Pair::product), fastest(&Pair::limit)}, bench.BytesOf(bench.chunks()));
  std::fprintf(stderr, "  fastest of %d slices: product %.2f GB/s, loop %.2f GB/s\n", static_cast<int>(pairs.size()),
               undisturbed.product, undisturbed.limit);
  report->cases.push_back({absl::StrCat(what, " ", page_kib, " KiB pages, 256 MiB"), batch.product, "GB/s", batch.limit,
                           Better::kHigher, kGoal});

  // One chunk at a time, each time another one, so that nobody finds its bytes in the cache.
  KVIST_RETURN_IF_ERROR(bench.Store(0, bench.chunks()).status());
  const std::vector<std::byte*> slots = bench.slots();
  std::vector<CopyBench::Plan> plans;
  for (uint32_t chunk = 0; chunk < bench.chunks(); ++chunk)
    plans.push_back({bench.Moves(slots, chunk, 1, store, best.order), best.kernel});
  uint32_t turn = 0;
  const auto next = [&] { return turn++ % bench.chunks(); };
  const Slice one = [&]() -> absl::StatusOr<double> { return store ? bench.Store(next(), 1) : bench.Load(next(), 1); };
  const Slice one_limit = [&]() -> absl::StatusOr<double> { return bench.RunLoop(plans[next()]); };
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> one_pairs, Alternate(0.025 * settings.time, one, one_limit));
  const Pair single = Rates(MedianByRatio(one_pairs), bench.BytesOf(1));
  report->cases.push_back({absl::StrCat(what, " ", page_kib, " KiB pages, one chunk"), single.product, "GB/s", single.limit,
                           Better::kHigher, std::nullopt});
  return absl::OkStatus();
}

// The loop is a limit only if it is at least as good as what anybody would write first. On a busy host either may be ahead for a while.
absl::Status CheckLimit(const Settings& settings, bool store, CopyBench& bench, Report* report) {
  constexpr int kTries = 4;
  KVIST_RETURN_IF_ERROR(bench.Store(0, bench.chunks()).status());
  for (int attempt = 1;; ++attempt) {
    const Best best = FindBest(bench, store, NontemporalKernels());
    const Best best_plain = FindBest(bench, store, std::vector{PlainKernel()});
    const CopyBench::Plan loop{bench.Moves(bench.slots(), 0, bench.chunks(), store, best.order), best.kernel};
    const CopyBench::Plan plain{bench.Moves(bench.slots(), 0, bench.chunks(), store, best_plain.order), best_plain.kernel};
    KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs,
                           Alternate(
                               0.05 * settings.time, [&]() -> absl::StatusOr<double> { return bench.RunLoop(loop); },
                               [&]() -> absl::StatusOr<double> { return bench.RunLoop(plain); }));
    const Pair rates = Rates(MedianByRatio(pairs), bench.BytesOf(bench.chunks()));
    const Case check{absl::StrCat("limit check, ", store ? "store" : "load", ": loop, plain memcpy"),
                     rates.product,
                     "GB/s",
                     rates.limit,
                     Better::kHigher,
                     1};
    const bool no_limit = check.misses() && !settings.quick;
    if (no_limit && attempt < kTries) continue;
    report->cases.push_back(check);
    if (!no_limit) break;
    return absl::FailedPreconditionError(absl::StrCat("the hand-written loop is slower than a plain memcpy ",
                                                      store ? "gather" : "scatter", " of 64 KiB pages: it is no limit"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCopy(const Settings& settings, Report* report) {
  if (settings.device == "cuda") return RunGpuCopy(settings, report);
  const uint64_t batch_bytes = settings.quick ? uint64_t{16} << 20 : uint64_t{256} << 20;
  struct {
    uint64_t page_kib;
    Way way;
  } const cases[] = {{16, Way::kMapped}, {32, Way::kMapped}, {64, Way::kMapped}, {64, Way::kProcessVm}};
  for (const auto& [page_kib, way] : cases) {
    KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<CopyBench> bench, CopyBench::Create(page_kib << 10, batch_bytes, way));
    KVIST_RETURN_IF_ERROR(bench->CheckBytes());
    for (const bool store : {true, false}) {
      KVIST_RETURN_IF_ERROR(MeasureDirection(settings, page_kib, store, *bench, report));
      if (page_kib == 64 && way == Way::kMapped) KVIST_RETURN_IF_ERROR(CheckLimit(settings, store, *bench, report));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvist::bench
