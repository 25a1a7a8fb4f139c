// What kvist costs an engine that never gets anything for it: every prompt is new, so every lookup misses and everything is stored.
//
// Two tinyllms in this process, one with a kvistd (a process of its own) and one without, take turns with requests of the same
// lengths; engine and daemon share all cores. The engine itself must be worth the comparison: a slow one would hide any cost, so
// its prefill is held against the bare matrix products of it.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/ctl/node_client.h"
#include "examples/tinyllm/engine.h"
#include "storage/base/status.h"
#include "tests/bench/bare_gemm.h"
#include "tests/bench/kvistd_process.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"

namespace kvist::bench {
namespace {

constexpr int kBatchTokens = 512;  // tinyllm's default: rows of its matrix products
constexpr int kWarmSlicesMax = 8;
constexpr double kThroughputGoal = 0.97;
constexpr double kStoredMin = 0.9;   // of what is computed
constexpr double kWrittenMin = 0.9;  // of what is stored
constexpr double kGemmGoal = 0.3;

struct Workload {
  int requests;  // of a slice, submitted at once
  int prompt_tokens;
  int answer_tokens;
};

// An engine, and prompts that nobody has seen.
class UniqueWork {
 public:
  UniqueWork(std::unique_ptr<tinyllm::Engine> engine, uint64_t seed) : engine_(std::move(engine)), random_(seed) {}

  // Tokens a second, of prompts and answers; ends when the last store has ended. (What it made kvistd write may end in the other's time: at
  // most a burst of the reserve, and mostly none of it, for answers are computed after it.)
  absl::StatusOr<double> Run(const Workload& work) {
    const double start = Now();
    for (int i = 0; i < work.requests; ++i) {
      std::vector<tinyllm::Token> prompt(static_cast<size_t>(work.prompt_tokens));
      std::ranges::generate(prompt, [&] { return static_cast<tinyllm::Token>(random_() % 256); });
      KVIST_RETURN_IF_ERROR(engine_->Submit(std::move(prompt), work.answer_tokens).status());
    }
    for (const tinyllm::Answer& answer : engine_->Run()) {
      if (answer.local_tokens + answer.kvist_tokens > 0)
        return absl::InternalError("a prompt that nobody has seen was found");
    }
    engine_->ForgetLocalPages();
    return work.requests * (work.prompt_tokens + work.answer_tokens) / (Now() - start);
  }
  tinyllm::Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<tinyllm::Engine> engine_;
  std::mt19937_64 random_;
};

absl::StatusOr<std::unique_ptr<UniqueWork>> MakeEngine(std::shared_ptr<const tinyllm::Model> model,
                                                       const std::string* socket, uint64_t seed) {
  tinyllm::Engine::Options options;
  options.kv_tokens = 16384;
  options.batch_tokens = kBatchTokens;
  if (socket != nullptr) {
    options.kvist.emplace();
    options.kvist->socket = *socket;
    options.kvist->instance = "bench";
  }
  KVIST_ASSIGN_OR_RETURN(std::unique_ptr<tinyllm::Engine> engine, tinyllm::Engine::Create(std::move(model), options));
  if (socket != nullptr && !engine->kvist()->connected())
    return absl::UnavailableError("tinyllm is not connected to kvistd");
  return std::make_unique<UniqueWork>(std::move(engine), seed);
}

}  // namespace

absl::Status RunOverhead(const Settings& settings, Report* report) {
  const Workload work = settings.quick ? Workload{1, 300, 2} : Workload{4, 768, 8};
  // A pool that is full before it counts: whatever is stored then evicts as much, and as much is written to the SSD.
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<KvistdProcess> kvistd, KvistdProcess::Start({"pool.bytes=64MiB"}));
  KVIST_ASSIGN_OR_RETURN(const std::shared_ptr<const tinyllm::Model> model, tinyllm::Model::Create({}));
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<UniqueWork> without, MakeEngine(model, nullptr, 1));
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<UniqueWork> with, MakeEngine(model, &kvistd->socket(), 2));
  const Slice product = [&] { return with->Run(work); };
  const Slice limit = [&] { return without->Run(work); };
  KVIST_ASSIGN_OR_RETURN(ctl::NodeClient client, ctl::NodeClient::Connect(kvistd->admin_socket()));
  const auto evictions = [&]() -> absl::StatusOr<uint64_t> {
    KVIST_ASSIGN_OR_RETURN(const node::v1::StatusReply status, client.Status(absl::Seconds(10)));
    return status.evictions();
  };
  const auto written = [&]() -> absl::StatusOr<uint64_t> {
    KVIST_ASSIGN_OR_RETURN(const node::v1::SsdReply ssd, client.Ssd(absl::Seconds(10)));
    return ssd.chunks_written();
  };
  tinyllm::KvistCache& cache = *with->engine().kvist();
  uint64_t evicted = 0;
  for (int slice = 0; slice == 0 || (evicted == 0 && !settings.quick); ++slice) {  // warm
    if (slice == kWarmSlicesMax) return absl::InternalError("nothing is evicted: the pool is larger than asked");
    KVIST_RETURN_IF_ERROR(product().status());
    KVIST_RETURN_IF_ERROR(limit().status());
    KVIST_ASSIGN_OR_RETURN(evicted, evictions());
  }
  const uint64_t stored_before = cache.stats().chunks_stored;
  KVIST_ASSIGN_OR_RETURN(const uint64_t written_before, written());
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs, Alternate(0.85 * settings.time, product, limit));
  KVIST_ASSIGN_OR_RETURN(const uint64_t written_after, written());
  const Pair throughput = MedianByRatio(pairs);
  report->cases.push_back(
      {"throughput, all misses", throughput.product, "token/s", throughput.limit, Better::kHigher, kThroughputGoal});
  report->cases.push_back({"chunks written to the SSD meanwhile", static_cast<double>(written_after - written_before), "",
                           static_cast<double>(cache.stats().chunks_stored - stored_before), Better::kHigher, std::nullopt});
  if (report->cases.back().ratio() < kWrittenMin && !settings.quick)
    return absl::InternalError("less was written to the SSD than stored: what that costs isn't in the figures");

  // What a token's KV weighs, and how much of what was computed reached the pool: all but each request's last, partial chunk.
  const tinyllm::Engine::Stats& stats = with->engine().stats();
  const auto kv_bytes = static_cast<double>(model->config().kv_bytes_per_token());
  const double computed = static_cast<double>(stats.prompt_tokens_computed + stats.answer_tokens_computed);
  const double stored = static_cast<double>(cache.stats().chunks_stored) * cache.chunk_tokens();
  if (stored < (settings.quick ? 1 : kStoredMin * computed))
    return absl::InternalError("little of what was computed was stored: this measured an engine without kvist");
  report->cases.push_back(
      {"KV bytes per token, stored", kv_bytes * stored / computed, "B", kv_bytes, Better::kHigher, std::nullopt});

  // Prefill alone: whole batches, one answer token (which comes with the last of them).
  const Workload prefill = settings.quick ? Workload{1, kBatchTokens, 1} : Workload{1, 2 * kBatchTokens, 1};
  BareGemm gemm(model->GemmShapes(kBatchTokens, 1));
  const double batches = static_cast<double>(prefill.prompt_tokens) / kBatchTokens;
  const Slice engine_rate = [&]() -> absl::StatusOr<double> {
    KVIST_ASSIGN_OR_RETURN(const double tokens_per_second, without->Run(prefill));
    return gemm.flop() * batches / ((prefill.prompt_tokens + prefill.answer_tokens) / tokens_per_second) * 1e-9;
  };
  const Slice gemm_rate = [&]() -> absl::StatusOr<double> {
    gemm.Run();  // its threads awake, its buffers there
    const double start = Now();
    for (int i = 0; i < static_cast<int>(batches); ++i) gemm.Run();
    const double seconds = Now() - start;
    BareGemm::Rest();
    return gemm.flop() * batches / seconds * 1e-9;
  };
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> gemm_pairs, Alternate(0.1 * settings.time, engine_rate, gemm_rate));
  const Pair rates = MedianByRatio(gemm_pairs);
  report->cases.push_back({"prefill vs bare GEMM", rates.product, "GFLOP/s", rates.limit, Better::kHigher, kGemmGoal});
  return absl::OkStatus();
}

}  // namespace kvist::bench
