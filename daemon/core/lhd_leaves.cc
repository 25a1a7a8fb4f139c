#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "daemon/core/evicted_chunks.h"
#include "daemon/core/eviction_policy.h"
#include "daemon/core/recency_spans.h"
#include "daemon/core/reuse_rates.h"
#include "storage/base/check.h"

namespace kvist::core {
namespace {

constexpr uint32_t kEpochsPerTurnover = 16;
constexpr uint64_t kEpochMin = 8;            // chunks stored
constexpr uint64_t kRememberedPerChunk = 4;  // reference/policy.md: with less it falls to LRU
constexpr uint32_t kJudgesPerTurnover = 4;   // of each class
constexpr uint64_t kJudgeEvery = 8;          // chunks stored, at least: each costs some 200 ns

// What is remembered of a chunk, while it is there and afterwards: Chunk::history.
struct History {
  uint32_t last_use : 16 = 0;  // RecencySpans::Epoch
  uint32_t used : 1 = 0;       // it has been hit
  uint32_t late : 1 = 0;       // it was stored in a later turn: it continues what had been hit
  uint32_t continued : 1 = 0;  // it has had children
  uint32_t depth : 2 = 0;      // DepthOf
  uint32_t hint : 3 = 0;       // HintOf
  uint32_t known : 1 = 0;      // always, but in a word that is no history
};
static_assert(sizeof(History) == sizeof(uint32_t));

// Few classes, so that each has seen enough: with four grades of uses and turns instead of two the hints of agents are worth a point
// less, for each class of each hint has to learn by itself.
constexpr uint32_t kClassKeys = 1 << 8;
uint32_t ClassKey(const History& h) { return h.used | h.late << 1 | h.continued << 2 | h.depth << 3 | h.hint << 5; }
uint32_t DepthOf(uint32_t position) { return position < 4 ? 0 : position < 16 ? 1 : position < 64 ? 2 : 3; }

// Expected reuse outweighs the reason why the answer ended.
uint32_t HintOf(const Chunk& chunk) {
  switch (chunk.expected_reuse) {
    case ExpectedReuse::kSoon: return 5;
    case ExpectedReuse::kLater: return 6;
    case ExpectedReuse::kNever: return 7;
    case ExpectedReuse::kUnknown: break;
  }
  return static_cast<uint32_t>(chunk.stop_reason);
}
static_assert(kStopReasonMax < 5);

class LhdLeaves : public EvictionPolicy {
 public:
  explicit LhdLeaves(ChunkTable* chunks) : chunks_(*chunks) { class_of_.fill(kNoClass); }

  void Sealed(ChunkIndex i) override {
    StoredOne();
    Chunk& chunk = chunks_[i];
    History h{.last_use = spans_.now(),
              .continued = chunk.children > 0,
              .depth = DepthOf(chunk.position),
              .hint = HintOf(chunk),
              .known = 1};
    if (const uint32_t word = evicted_.Take(chunks_.NameHash(chunk)); word != 0) {
      const auto before = std::bit_cast<History>(word);
      WaitedFor(before);
      h.used = 1;
      h.late = before.late;
    } else if (chunk.parent != kNoChunk) {
      // One that nobody has hit was stored with this chunk, or just before it: the same turn.
      const History parent = Of(chunk.parent);
      h.late = parent.used | parent.late;
    }
    ++sealed_;
    Wait(h);
    Remember(i, h);
  }

  void Used(std::span<const ChunkIndex> path) override {
    for (const ChunkIndex i : path) {
      Unlink(i);
      History h = Of(i);
      if (!h.known) continue;  // not in slots
      WaitedFor(h);
      h.used = 1;
      h.hint = HintOf(chunks_[i]);
      h.last_use = spans_.now();
      Wait(h);
      Remember(i, h);
    }
    Offer(path.back(), End::kNewest);
  }

  void Returned(ChunkIndex i) override {
    Unlink(i);
    History h = Of(i);
    if (h.last_use != spans_.now()) {
      --Waiting(h);
      h.last_use = spans_.now();
      Wait(h);
      Remember(i, h);
    }
    Offer(i, End::kNewest);
  }

  // The last of a chain goes on to be evicted until there is nothing left of it, or it is worth more than others.
  void Exposed(ChunkIndex i) override {
    if (!Knows(i)) Offer(i, End::kOldest);
  }

  void Withdrawn(ChunkIndex i) override {
    Unlink(i);
    History h = Of(i);
    if (!h.known || h.continued || chunks_[i].children == 0) return;
    --Waiting(h);
    h.continued = 1;
    Wait(h);
    Remember(i, h);
  }

  void Hinted(ChunkIndex i) override {
    History h = Of(i);
    if (!h.known) return;
    const bool offered = Knows(i);
    Unlink(i);
    --Waiting(h);
    h.hint = HintOf(chunks_[i]);
    Wait(h);
    Remember(i, h);
    if (offered) Offer(i, End::kNewest);
  }

  void Dropped(ChunkIndex i) override {
    const History h = Of(i);
    if (!h.known) return;
    --Waiting(h);
    chunks_[i].history = 0;
    --sealed_;
  }

  void Prefetch(std::span<const uint32_t> names) const override {
    for (const uint32_t name : names) evicted_.Prefetch(name);
  }

  ChunkIndex NextVictim() override {
    while (true) {
      const ChunkIndex i = LeastWorth();
      if (i == kNoChunk) return kNoChunk;
      // What the next victim's eviction will touch is asked for one victim ahead, and its own lines two: else each is waited for by itself. It is
      // the parent that loses its last child, or else mostly the next in this order.
      if (i != ahead_) PrefetchEviction(i);
      const ChunkIndex parent = chunks_[i].parent, next = chunks_[i].newer;
      ahead_ = parent != kNoChunk && chunks_[parent].residents == 1 ? parent : next < kListNames ? next : kNoChunk;
      if (ahead_ != kNoChunk) PrefetchEviction(ahead_);
      if (next < kListNames) chunks_.PrefetchLines(next);
      Unlink(i);
      if (Evictable(chunks_[i])) return i;
    }
  }

  void Evicted(ChunkIndex i) override {
    Chunk& chunk = chunks_[i];
    chunks_.Charge(1);
    const auto forget = [this](uint32_t word) { --Waiting(std::bit_cast<History>(word)); };
    for (int k = 0; k < 2; ++k) evicted_.ResizeTowards(kRememberedPerChunk * sealed_, forget);
    if (const uint32_t gone = evicted_.Put(chunks_.NameHash(chunk), chunk.history); gone != 0) forget(gone);
    chunk.history = 0;  // it waits on, there
    --sealed_;
  }

  bool Knows(ChunkIndex i) const override { return chunks_[i].older != kNoChunk; }

  uint64_t memory_bytes() const override {
    return sizeof *this + classes_.capacity() * sizeof(Class) + rates_.memory_bytes() + evicted_.memory_bytes();
  }

 private:
  enum class End { kOldest, kNewest };
  struct List {
    ChunkIndex oldest = kNoChunk;
    ChunkIndex newest = kNoChunk;
  };
  // The leaves of a class. What is [place] is by RecencySpans.
  struct Class {
    std::array<List, RecencySpans::kPlaces> lists;
    std::array<uint32_t, RecencySpans::kPlaces> waiting{};  // chunks, leaves or not, and those that are remembered
    uint32_t offered = 0;                                   // bit of each place whose list isn't empty
    uint32_t least_at = 0;                                  // of those the place that is worth least,
    float least = std::numeric_limits<float>::infinity();   // and what it is worth
  };
  static_assert(RecencySpans::kPlaces <= 32);
  static constexpr uint32_t Bit(uint32_t place) { return 1u << place % RecencySpans::kPlaces; }
  static constexpr uint32_t kClassesMax = 128;
  static constexpr uint8_t kNoClass = UINT8_MAX;

  // A list's name, in the words of the chunks at its ends where others name a neighbour. No chunk has such a large place.
  static constexpr ChunkIndex kListNames = UINT32_MAX - UINT16_MAX;
  static constexpr ChunkIndex kCold = kListNames + kClassesMax * RecencySpans::kPlaces;
  static_assert(kCold < kNoChunk);

  void PrefetchEviction(ChunkIndex i) {
    evicted_.Prefetch(chunks_.PrefetchRemoval(i));
    if (const ChunkIndex newer = chunks_[i].newer; newer < kListNames) chunks_.PrefetchLines(newer);
  }

  // ---- Histories ------------------------------------------------------------------------------------------------------------

  History Of(ChunkIndex i) const { return std::bit_cast<History>(chunks_[i].history); }
  void Remember(ChunkIndex i, History h) { chunks_[i].history = std::bit_cast<uint32_t>(h); }

  uint32_t ClassOf(const History& h) {
    uint8_t& known = class_of_[ClassKey(h)];
    if (known == kNoClass) {
      known = static_cast<uint8_t>(std::min<size_t>(classes_.size(), kClassesMax - 1));  // the last has all the rest
      if (known == classes_.size()) {
        classes_.emplace_back();
        rates_.AddClass();
        rates_.Judge(known, first_age_, last_age_);
      }
    }
    return known;
  }
  uint32_t& Waiting(const History& h) { return classes_[ClassOf(h)].waiting[spans_.Of(static_cast<uint16_t>(h.last_use))]; }
  void Wait(const History& h) { ++Waiting(h); }
  // The chunk was used again.
  void WaitedFor(const History& h) {
    --Waiting(h);
    rates_.Hit(ClassOf(h), age_[spans_.Of(static_cast<uint16_t>(h.last_use))]);
  }

  // ---- Lists ----------------------------------------------------------------------------------------------------------------

  List& Named(ChunkIndex name) {
    if (name == kCold) return cold_;
    return classes_[(name - kListNames) / RecencySpans::kPlaces].lists[(name - kListNames) % RecencySpans::kPlaces];
  }

  void Offer(ChunkIndex i, End end) {
    Chunk& chunk = chunks_[i];
    if (!Evictable(chunk)) return;
    if (chunk.cold()) return Link(i, kCold, End::kOldest);
    const History h = Of(i);
    const uint32_t c = ClassOf(h), place = spans_.Of(static_cast<uint16_t>(h.last_use));
    Link(i, kListNames + c * RecencySpans::kPlaces + place, end);
    Class& of = classes_[c];
    if ((of.offered & Bit(place)) != 0) return;
    of.offered |= Bit(place);
    if (const float worth = rates_.worth(c, age_[place]); worth < of.least) {
      of.least = worth;
      of.least_at = place;
    }
  }

  void Link(ChunkIndex i, ChunkIndex name, End end) {
    List& list = Named(name);
    Chunk& chunk = chunks_[i];
    if (list.oldest == kNoChunk) {
      chunk.older = chunk.newer = name;
      list.oldest = list.newest = i;
    } else if (end == End::kOldest) {
      chunk.older = name;
      chunk.newer = list.oldest;
      list.oldest = chunks_[list.oldest].older = i;
    } else {
      chunk.older = list.newest;
      chunk.newer = name;
      list.newest = chunks_[list.newest].newer = i;
    }
  }

  void Unlink(ChunkIndex i) {
    Chunk& chunk = chunks_[i];
    if (chunk.older == kNoChunk) return;
    const bool first = chunk.older >= kListNames, last = chunk.newer >= kListNames;
    if (first && last) {
      Named(chunk.older) = {};
      if (chunk.older != kCold) {
        const uint32_t c = (chunk.older - kListNames) / RecencySpans::kPlaces;
        const uint32_t place = (chunk.older - kListNames) % RecencySpans::kPlaces;
        classes_[c].offered &= ~(Bit(place));
        if (classes_[c].least_at == place) FindLeast(c);
      }
    } else if (first) {
      Named(chunk.older).oldest = chunk.newer;
      chunks_[chunk.newer].older = chunk.older;
    } else if (last) {
      Named(chunk.newer).newest = chunk.older;
      chunks_[chunk.older].newer = chunk.newer;
    } else {
      chunks_[chunk.newer].older = chunk.older;
      chunks_[chunk.older].newer = chunk.newer;
    }
    chunk.older = chunk.newer = kNoChunk;
  }

  void FindLeast(uint32_t c) {
    Class& of = classes_[c];
    of.least = std::numeric_limits<float>::infinity();
    for (uint32_t rest = of.offered; rest != 0; rest &= rest - 1) {
      const auto place = static_cast<uint32_t>(std::countr_zero(rest));
      const float worth = rates_.worth(c, age_[place]);
      if (worth >= of.least) continue;
      of.least = worth;
      of.least_at = place;
    }
  }

  ChunkIndex LeastWorth() {
    if (cold_.oldest != kNoChunk) return cold_.oldest;
    const Class* least = nullptr;
    for (const Class& c : classes_) {
      if (c.offered != 0 && (least == nullptr || c.least < least->least)) least = &c;
    }
    return least == nullptr ? kNoChunk : least->lists[least->least_at].oldest;
  }

  // ---- Time -----------------------------------------------------------------------------------------------------------------

  void StoredOne() {
    ++stored_;
    if (stored_ - spans_.begin_of_newest() >= std::max(kEpochMin, sealed_ / kEpochsPerTurnover)) EndEpoch();
    if (classes_.empty()) return;
    if (++since_judged_ < std::max(kJudgeEvery, sealed_ / (kJudgesPerTurnover * classes_.size()))) return;
    since_judged_ = 0;
    judge_next_ = (judge_next_ + 1) % static_cast<uint32_t>(classes_.size());
    if (judge_next_ == 0) rates_.JudgeAll(first_age_, last_age_);
    rates_.Judge(judge_next_, first_age_, last_age_);
    FindLeast(judge_next_);
    chunks_.Charge(4);
  }

  void EndEpoch() {
    const auto length = static_cast<double>(stored_ - spans_.begin_of_newest());
    for (uint32_t c = 0; c < classes_.size(); ++c) {
      for (uint32_t n = 0; n < spans_.size(); ++n) {
        const uint32_t place = spans_.place(n);
        const uint32_t waiting = classes_[c].waiting[place];
        // Those of the newest span came one by one.
        const double share = place == spans_.newest() ? 0.5 : 1;
        if (waiting != 0) rates_.Waited(c, age_[place], share * length * waiting);
      }
    }
    spans_.NextEpoch(stored_, [this](uint32_t into, uint32_t from) { Merge(into, from); });
    const auto halfway = static_cast<uint64_t>(length / 2);
    first_age_ = ReuseRates::AgeOf(halfway);
    last_age_ = std::max(first_age_, ReuseRates::AgeOf((2 * kRememberedPerChunk) * std::max<uint64_t>(sealed_, 1)));
    for (uint32_t n = 0; n < spans_.size(); ++n) {
      const uint64_t age = n + 1 == spans_.size() ? halfway : stored_ - spans_.middle(n, stored_);
      age_[spans_.place(n)] = std::clamp(ReuseRates::AgeOf(age), first_age_, last_age_);
    }
    for (uint32_t c = 0; c < classes_.size(); ++c) FindLeast(c);
    chunks_.Charge(1 + classes_.size());
  }

  void Merge(uint32_t into, uint32_t from) {
    for (uint32_t c = 0; c < classes_.size(); ++c) {
      Class& of = classes_[c];
      of.waiting[into] += of.waiting[from];
      of.waiting[from] = 0;
      if ((of.offered & Bit(from)) == 0) continue;
      of.offered &= ~(Bit(from));
      of.offered |= Bit(into);
      List& older = of.lists[into];
      List& newer = of.lists[from];
      const ChunkIndex name = kListNames + c * RecencySpans::kPlaces + into;
      chunks_[newer.newest].newer = name;
      if (older.oldest == kNoChunk) {
        chunks_[newer.oldest].older = name;
        older = newer;
      } else {
        chunks_[newer.oldest].older = older.newest;
        chunks_[older.newest].newer = newer.oldest;
        older.newest = newer.newest;
      }
      newer = {};
    }
  }

  ChunkTable& chunks_;
  RecencySpans spans_;
  ReuseRates rates_;
  EvictedChunks evicted_;
  std::array<uint8_t, kClassKeys> class_of_;  // [ClassKey]
  std::vector<Class> classes_;
  List cold_;
  std::array<uint32_t, RecencySpans::kPlaces> age_{};  // [place] of rates_
  uint32_t first_age_ = 0;
  uint32_t last_age_ = ReuseRates::kAges - 1;
  uint64_t sealed_ = 0;  // chunks that are there
  uint64_t stored_ = 0;  // ever
  uint64_t since_judged_ = 0;
  uint32_t judge_next_ = 0;
  ChunkIndex ahead_ = kNoChunk;  // what its eviction will touch has been asked for
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLhdLeaves(ChunkTable* chunks) { return std::make_unique<LhdLeaves>(chunks); }

}  // namespace kvist::core
