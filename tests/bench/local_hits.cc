#include "tests/bench/local_hits.h"

#include <signal.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/ctl/node_client.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "tests/bench/engine_memory.h"
#include "tests/bench/kvistd_process.h"
#include "tests/bench/random_keys.h"
#include "tests/bench/slices.h"
#include "tests/support/redis_server.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kHitChunks = 64;  // of the prompt
// 128 KiB a chunk: small, so that what isn't copying shows.
constexpr EngineMemory::Shape kHitShape{
    .layers = 4, .pages = (kHitChunks + 1) * 16, .pages_per_chunk = 16, .page_bytes = 2048};
constexpr int kSliceHits = 400;
// So many hits and a chunk is stored, behind the next hit's back. 128 KiB for 16 x 8 MiB: less than an engine has.
constexpr int kHitsAStore = 16;
// With each of the two nodes as the one whose store is down. 9 pairs are asked for; of 10 the p99 is a coin toss on a machine with other work.
constexpr size_t kHitPairsMin = 15;
constexpr int64_t kHitTimeoutUs = 30'000'000;
constexpr absl::Duration kStateTime = absl::Minutes(1);  // until a store's state is known: the breaker's pauses grow to 30 s
constexpr double kHitMedianGoal = 1.05;
constexpr double kHitTailGoal = 1.5;

enum class Outage { kNone, kKilled, kHung };
const char* NameOf(Outage outage) {
  return outage == Outage::kNone ? "both up" : outage == Outage::kKilled ? "killed" : "hung";
}

// Of each slice, in seconds.
struct HitTimes {
  std::vector<double> p50, p99;
};

// A redis-server, a kvistd with it, and an engine whose prompt lies in that kvistd's DRAM.
class HitNode {
 public:
  static absl::StatusOr<std::unique_ptr<HitNode>> Start(const EngineMemory& memory, uint64_t seed) {
    auto node = std::unique_ptr<HitNode>(new HitNode(memory, seed));
    KVIST_ASSIGN_OR_RETURN(
        node->kvistd_,
        KvistdProcess::Start({"pool.bytes=256MiB", "pool.slab_bytes=4MiB", "lease.share=1.0", "ssd.enabled=false",
                              absl::StrCat("remote.store=redis://", node->redis_.socket()), "remote.read_timeout=1s",
                              "remote.write_timeout=1s", "log.level=error"}));
    KVIST_ASSIGN_OR_RETURN(node->scheduler_, memory.Connect(node->kvistd_->socket(), KVIST_SCHEDULER));
    KVIST_ASSIGN_OR_RETURN(node->worker_, memory.Connect(node->kvistd_->socket(), KVIST_WORKER));
    KVIST_RETURN_IF_ERROR(node->AwaitUp());
    node->Fill();
    const kvist_result stored = node->worker_.Wait(node->worker_.Store(node->prompt_, 0, node->PagesOf(0)), kHitTimeoutUs);
    if (stored.status != KVIST_OK || stored.chunks_copied != kHitChunks)
      return absl::InternalError(absl::StrCat("storing the prompt: ", kvist_error()));
    KVIST_RETURN_IF_ERROR(node->AwaitUp());
    return node;
  }

  // A slice; answers its median. Each hit is a lookup with a lease, a load of all of it and the lease's release.
  absl::StatusOr<double> Hits(int count, HitTimes* times) {
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      if (i % kHitsAStore == 0) KVIST_RETURN_IF_ERROR(StoreAnother());
      const double start = Now();
      KVIST_RETURN_IF_ERROR(HitOnce());
      seconds.push_back(Now() - start);
    }
    KVIST_RETURN_IF_ERROR(CheckBytes());
    times->p50.push_back(Quantile(seconds, 0.5));
    times->p99.push_back(Quantile(std::move(seconds), 0.99));
    return times->p50.back();
  }

  // Returns when kvistd has noticed, and has left the store alone.
  absl::Status TakeAway(Outage outage) {
    if (outage == Outage::kNone) return absl::OkStatus();
    if (outage == Outage::kKilled) redis_.process().Kill();
    if (outage == Outage::kHung) redis_.process().Signal(SIGSTOP);
    const absl::Time deadline = MonotonicNow() + kStateTime;
    while (MonotonicNow() < deadline) {
      for (int i = 0; i < 8; ++i) KVIST_RETURN_IF_ERROR(StoreAnother());
      KVIST_ASSIGN_OR_RETURN(const node::v1::RemoteTier tier, Tier());
      if (!tier.reachable()) return absl::OkStatus();
      absl::SleepFor(absl::Milliseconds(50));
    }
    return absl::DeadlineExceededError("kvistd didn't notice that its remote store is down");
  }
  absl::Status BringBack(Outage outage) {
    if (outage == Outage::kKilled) redis_.Start();
    if (outage == Outage::kHung) redis_.process().Signal(SIGCONT);
    return AwaitUp();
  }

  absl::StatusOr<node::v1::RemoteTier> Tier() const {
    KVIST_ASSIGN_OR_RETURN(ctl::NodeClient client, ctl::NodeClient::Connect(kvistd_->admin_socket()));
    KVIST_ASSIGN_OR_RETURN(const node::v1::StatusReply status, client.Status(absl::Seconds(10)));
    return status.remote();
  }

 private:
  HitNode(const EngineMemory& memory, uint64_t seed)
      : memory_(memory), random_(seed), prompt_(RandomKeys(random_, kHitChunks)), pages_(kHitShape.pages) {
    std::iota(pages_.begin(), pages_.end(), 0U);
  }

  // Block table of the prompt, or of the one chunk behind it.
  std::span<const uint32_t> PagesOf(uint32_t first_chunk) const {
    const std::span<const uint32_t> all = pages_;
    const size_t prompt = size_t{kHitChunks} * kHitShape.pages_per_chunk;
    return first_chunk == 0 ? all.first(prompt) : all.subspan(prompt);
  }
  static int ContentOf(uint32_t layer, uint32_t page) { return static_cast<int>((layer * 131 + page * 7 + 5) % 251); }
  void Fill() const {
    for (uint32_t layer = 0; layer < kHitShape.layers; ++layer) {
      for (const uint32_t page : pages_)
        std::memset(memory_.Page(layer, page), ContentOf(layer, page), kHitShape.page_bytes);
    }
  }

  absl::Status HitOnce() {
    kvist::Hit hit = scheduler_.Lookup(prompt_, kHitTimeoutUs);
    if (hit.chunks != kHitChunks || hit.coming > 0 || !hit.lease)
      return absl::InternalError(absl::StrCat("of a prompt that is all here ", hit.chunks, " chunks were found, ",
                                              hit.coming, " of them elsewhere: ", kvist_error()));
    const kvist_result loaded = worker_.Wait(worker_.Load(hit.lease, 0, kHitChunks, PagesOf(0)), kHitTimeoutUs);
    if (loaded.status != KVIST_OK || loaded.chunks_copied != kHitChunks)
      return absl::InternalError(absl::StrCat("a load from DRAM: status ", loaded.status, ", ", kvist_error()));
    hit.lease.Release();
    return absl::OkStatus();
  }

  // Begins to; the one before has ended.
  absl::Status StoreAnother() {
    if (storing_ != 0 && worker_.Wait(storing_, kHitTimeoutUs).status != KVIST_OK)
      return absl::InternalError(absl::StrCat("a store beside the hits: ", kvist_error()));
    storing_ = worker_.Store(RandomKeys(random_, 1), 0, PagesOf(kHitChunks));
    if (storing_ == 0) return absl::InternalError(absl::StrCat("a store beside the hits: ", kvist_error()));
    return absl::OkStatus();
  }

  // Whether hits bring what was stored.
  absl::Status CheckBytes() {
    for (const uint32_t page : PagesOf(0)) *memory_.Page(page % kHitShape.layers, page) = std::byte{255};
    KVIST_RETURN_IF_ERROR(HitOnce());
    for (const uint32_t page : PagesOf(0)) {
      if (*memory_.Page(page % kHitShape.layers, page) != static_cast<std::byte>(ContentOf(page % kHitShape.layers, page)))
        return absl::DataLossError(absl::StrCat("page ", page, " came back with other bytes than were stored"));
    }
    return absl::OkStatus();
  }

  // Until the store answers and has all that waited for it.
  absl::Status AwaitUp() const {
    const absl::Time deadline = MonotonicNow() + kStateTime;
    while (MonotonicNow() < deadline) {
      KVIST_ASSIGN_OR_RETURN(const node::v1::RemoteTier tier, Tier());
      if (tier.reachable() && tier.chunks_waiting() == 0 && tier.bytes_on_their_way() == 0) return absl::OkStatus();
      absl::SleepFor(absl::Milliseconds(50));
    }
    return absl::DeadlineExceededError("kvistd doesn't reach its remote store");
  }

  const EngineMemory& memory_;
  std::mt19937_64 random_;
  const std::vector<kvist_key> prompt_;
  std::vector<uint32_t> pages_;
  test::RedisServer redis_{{"--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lru"}};
  std::unique_ptr<KvistdProcess> kvistd_;
  kvist::Client scheduler_, worker_;
  kvist_op storing_ = 0;
};

struct UpAndDown {
  HitTimes up, down;
};

// One node whose store is down for a while, beside one whose isn't.
absl::Status CompareHits(const Settings& settings, absl::Duration time, Outage outage, HitNode& down, HitNode& up,
                         UpAndDown* times) {
  const int count = settings.quick ? 2 * kHitsAStore : kSliceHits;
  KVIST_RETURN_IF_ERROR(down.TakeAway(outage));
  HitTimes warm;
  for (HitNode* node : {&down, &up}) KVIST_RETURN_IF_ERROR(node->Hits(count, &warm).status());
  KVIST_ASSIGN_OR_RETURN(const node::v1::RemoteTier before, up.Tier());
  KVIST_RETURN_IF_ERROR(Alternate(
                            time, [&] { return down.Hits(count, &times->down); }, [&] { return up.Hits(count, &times->up); },
                            settings.quick ? 1 : kHitPairsMin)
                            .status());
  KVIST_ASSIGN_OR_RETURN(const node::v1::RemoteTier after, up.Tier());
  KVIST_ASSIGN_OR_RETURN(const node::v1::RemoteTier away, down.Tier());
  if (!after.reachable() || after.chunks_written() <= before.chunks_written() ||
      after.writes_failed() > before.writes_failed())
    return absl::InternalError("the store that is up wasn't written to all the time");
  if (away.reachable() != (outage == Outage::kNone))
    return absl::InternalError("the store that is down wasn't down all the time");
  return down.BringBack(outage);
}

}  // namespace

absl::Status MeasureLocalHits(const Settings& settings, absl::Duration time, Report* report) {
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<EngineMemory> memory, EngineMemory::Create(kHitShape));
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<HitNode> one, HitNode::Start(*memory, 1));
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<HitNode> other, HitNode::Start(*memory, 2));
  for (const Outage outage : {Outage::kNone, Outage::kKilled, Outage::kHung}) {
    // Each node is the one whose store is down once: where its slots happen to lie mustn't count.
    UpAndDown times;
    KVIST_RETURN_IF_ERROR(CompareHits(settings, time / 2, outage, *one, *other, &times));
    KVIST_RETURN_IF_ERROR(CompareHits(settings, time / 2, outage, *other, *one, &times));
    const auto add = [&](const char* figure, std::vector<double> HitTimes::*of, double goal) {
      report->cases.push_back({absl::StrCat("local hit, ", NameOf(outage), ", ", figure),
                               Quantile(times.down.*of, 0.5) * 1e6, "us", Quantile(times.up.*of, 0.5) * 1e6, Better::kLower,
                               outage == Outage::kNone ? std::nullopt : std::optional(goal)});
    };
    add("p50", &HitTimes::p50, kHitMedianGoal);
    add("p99", &HitTimes::p99, kHitTailGoal);
  }
  return absl::OkStatus();
}

}  // namespace kvist::bench
