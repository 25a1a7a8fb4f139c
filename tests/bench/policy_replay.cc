#include "tests/bench/policy_replay.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "daemon/core/core.h"
#include "storage/base/check.h"
#include "storage/pool/slot_allocator.h"
#include "tests/bench/log_disk.h"
#include "tests/bench/slices.h"

namespace kvist::bench {
namespace {

constexpr Bytes kSlot = KiB(4);
constexpr SessionId kSession{1};
constexpr size_t kAskedAtOnce = 32;  // places; fewer than the reserve has
constexpr uint32_t kPart = 16;       // blocks: 8,192 tokens of a chunked prefill

ChunkKey KeyOf(uint64_t block, uint32_t world) {
  ChunkKey key;
  uint64_t state = block * 0x9e3779b97f4a7c15 + world;
  for (size_t word = 0; word < sizeof key.bytes / sizeof(uint64_t); ++word) {  // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    std::memcpy(&key.bytes[word * sizeof z], &z, sizeof z);
  }
  return key;
}

class Replay {
 public:
  Replay(uint64_t capacity, core::Eviction eviction, uint64_t disk) : eviction_(eviction), capacity_(capacity), disk_(disk) {
    space_.groups.push_back({.reuse = {}, .slot_bytes = {kSlot}});
    Begin();
    if (disk > 0) Do(core::DiskWritable{true});
    OpenSession();
  }

  // The daemon ends cleanly and begins anew: it is told of what is on the disk, and, if it is `told`, of when that was used.
  void Restart(bool told) {
    Do(core::FlushAsked{{}, NextTag()});
    Reclaim();
    moved_before_ += core_->status().chunks_moved;
    waiting_.clear();
    Begin();
    Do(core::SpaceFound{space_});
    std::vector<core::ChunksFound::Found> rows;
    for (const auto& [key, row] : rows_) rows.push_back(row);
    std::ranges::sort(
        rows, [](const auto& a, const auto& b) { return std::pair(a.position, a.key) < std::pair(b.position, b.key); });
    for (size_t at = 0; at < rows.size(); at += core::Core::kPlacesMax) {
      const size_t end = std::min<size_t>(at + core::Core::kPlacesMax, rows.size());
      Do(core::ChunksFound{SpaceId{0},
                           {rows.begin() + static_cast<ptrdiff_t>(at), rows.begin() + static_cast<ptrdiff_t>(end)}});
    }
    int32_t last = 0;
    for (const core::DiskUses& uses : uses_) last = std::max(last, uses.period);
    for (core::DiskUses& uses : uses_) uses.period -= last;
    for (const core::DiskUses& uses : std::vector(uses_)) {
      if (told) Do(core::UsesFound{uses});
    }
    Do(core::DiskTold{});
    Do(core::DiskWritable{true});
    OpenSession();
  }

  void Run(std::span<const ChunkKey> keys, core::StopReason stop) {
    outcome_.blocks += keys.size();
    const double start = Now();
    Do(core::LookupAsked{kSession, NextTag(), keys, absl::Seconds(60)});
    const auto answered = std::find_if(effects_.begin(), effects_.end(), [](const core::Effect& effect) {
      return std::holds_alternative<core::LookupAnswered>(effect);  // reads come before it
    });
    const auto answer = std::get<core::LookupAnswered>(*answered);
    outcome_.hits += answer.chunks;
    if (answer.chunks < keys.size()) Store(keys, answer.chunks);
    if (stop != core::StopReason::kUnknown) Do(core::HintAsked{kSession, keys, {.stop_reason = stop}});
    if (answer.lease) Do(core::ReleaseAsked{kSession, answer.lease});
    Reclaim();
    outcome_.seconds += Now() - start;
  }

  PolicyOutcome outcome() const {
    PolicyOutcome outcome = outcome_;
    outcome.writes = disk_.written();
    outcome.rewrites = moved_before_ + core_->status().chunks_moved;
    outcome.memory_bytes = core_->status().index_bytes.value;
    return outcome;
  }

 private:
  static pool::SlotAllocator::Options PoolOf(uint64_t capacity) {
    pool::SlotAllocator::Options pool;
    // One slab of all, so that there is room for just so many.
    pool.slab_bytes = kSlot * capacity;
    pool.regions = {pool.slab_bytes};
    return pool;
  }
  static core::CoreOptions OptionsOf(core::Eviction eviction, uint64_t capacity, uint64_t disk) {
    core::CoreOptions options;
    if (disk > 0) {
      // A reserve for one part of a store: nothing that is written takes any time.
      options.disk = core::CoreOptions::Disk{
          .reserve = kSlot * (capacity / 16 + 1), .writing = kSlot * (capacity / 16 + 1), .capacity = kSlot * disk};
    }
    options.eviction = eviction;
    options.lease_share = 1;
    return options;
  }

  void Begin() {
    core_.reset();
    slots_.emplace(*pool::SlotAllocator::Create(PoolOf(capacity_)));
    core_.emplace(OptionsOf(eviction_, capacity_, disk_.capacity()), &*slots_);
  }
  void OpenSession() {
    Do(core::SessionOpened{kSession, "bench", core::Role::kWorker, Rank{0}, space_});
    KVIST_CHECK(std::holds_alternative<core::SessionAccepted>(effects_.at(0)));
  }

  template <class Event>
  void Do(const Event& event) {
    effects_.clear();
    served_ = 0;
    core_->Handle(event, &effects_);
    if (disk_.capacity() == 0) return;
    ServeDisk();
    while (core_->has_work()) {
      core_->Handle(core::Tick{}, &effects_);
      ServeDisk();
    }
  }
  // What the disk does at once; the event's own effects stay in effects_. What it has no room for waits for the next Reclaim.
  void ServeDisk() {
    const auto serve = [&](const auto& event) { core_->Handle(event, &effects_); };
    for (; served_ < effects_.size(); ++served_) {
      const core::Effect effect = effects_[served_];
      if (const auto* write = std::get_if<core::WriteStarted>(&effect)) {
        const std::optional<DiskPlace> place = disk_.Append(write->key);
        if (place.has_value()) {
          rows_[write->key] = {write->group, write->key, write->parent, write->position, {*place}, write->hint};
          serve(core::WriteFinished{write->chunk, absl::OkStatus(), {*place}});
        } else {
          waiting_.push_back(write->chunk);
        }
      }
      if (const auto* noted = std::get_if<core::UsesNoted>(&effect)) uses_.push_back(noted->noted);
      if (const auto* read = std::get_if<core::ReadStarted>(&effect))
        serve(core::ReadFinished{read->chunk, absl::OkStatus()});
      if (const auto* freed = std::get_if<core::PlacesFreed>(&effect)) {
        for (const core::PlacesFreed::Chunk& chunk : freed->chunks) {
          if (!chunk.replaced) rows_.erase(chunk.key);
          disk_.Free(chunk.places[0]);
        }
      }
    }
  }
  // Segments are given back between requests, and where one of them writes more than there is room for.
  void Reclaim() {
    for (size_t failing = waiting_.size(); failing > 0; --failing) {
      const core::ChunkRef chunk = waiting_.front();
      waiting_.pop_front();
      Do(core::WriteFinished{chunk, absl::ResourceExhaustedError("no segment is free"), {}});
    }
    for (int round = 0; round < 1000 && disk_.crowded(); ++round) {
      core::PlacesWanted wanted;
      for (const LogDisk::Record& record : disk_.Wanted(kAskedAtOnce))
        wanted.records.push_back({SpaceId{0}, GroupId{0}, record.key, record.place});
      if (wanted.records.empty()) break;
      Do(wanted);
    }
  }
  core::RequestTag NextTag() { return core::RequestTag{next_tag_++}; }

  // As its engine computes it: in parts, when there is a disk that must have written what goes for them.
  void Store(std::span<const ChunkKey> keys, uint32_t first) {
    const uint32_t part = disk_.capacity() > 0 ? kPart : static_cast<uint32_t>(keys.size());
    for (; first < keys.size(); first += part) {
      StorePart(keys.first(std::min<size_t>(first + part, keys.size())), first);
      if (!waiting_.empty()) Reclaim();
    }
  }
  void StorePart(std::span<const ChunkKey> keys, uint32_t first) {
    core::StoreAsked store{kSession, NextTag(), GroupId{0}, {}, keys.subspan(first)};
    if (first > 0) store.parent = keys[first - 1];
    Do(store);
    if (const auto* copy = std::get_if<core::CopyStarted>(&effects_.at(0))) {
      const OpId op = copy->op;
      Do(core::CopyFinished{op, absl::OkStatus()});
    }
    outcome_.refused += std::get<core::OpEnded>(effects_.at(0)).refused;
  }

  core::SpaceSpec space_{.digest = {}, .tenant = "bench", .model = "none", .groups = {}};
  const core::Eviction eviction_;
  const uint64_t capacity_;
  std::optional<pool::SlotAllocator> slots_;
  std::optional<core::Core> core_;
  core::Effects effects_;
  size_t served_ = 0;  // of them, by the disk
  LogDisk disk_;
  std::deque<core::ChunkRef> waiting_;  // for room on it
  // Of what is on it, and when it was used: what a later daemon is told.
  std::map<ChunkKey, core::ChunksFound::Found> rows_;
  std::vector<core::DiskUses> uses_;
  uint64_t moved_before_ = 0;
  PolicyOutcome outcome_;
  uint64_t next_tag_ = 1;
};

}  // namespace

PolicyOutcome ReplayPolicy(std::span<const PolicyRequest> requests, uint64_t capacity, core::Eviction eviction,
                           uint32_t copies, uint64_t disk, Restarts restarts) {
  Replay replay(capacity, eviction, disk);
  std::vector<ChunkKey> keys;
  const size_t life = std::max<size_t>(requests.size() / (restarts.count + 1), 1);
  for (size_t n = 0; n < requests.size(); ++n) {
    const PolicyRequest& request = requests[n];
    if (n > 0 && n % life == 0 && n / life <= restarts.count) replay.Restart(restarts.told_of_uses);
    for (uint32_t world = 0; world < copies; ++world) {
      keys.clear();
      for (const uint64_t block : request.blocks) keys.push_back(KeyOf(block, world));
      replay.Run(keys, request.stop);
    }
  }
  return replay.outcome();
}

}  // namespace kvist::bench
