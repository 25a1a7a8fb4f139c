// A core with a disk below its slots, or a store beyond the node, or both: every copy is given the bytes that were stored under its key, whatever is written, read, lost,
// evicted, cleared and given up meanwhile, and in the end nothing is left anywhere.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/core/left_index.h"
#include "tests/support/campaign.h"
#include "tests/support/kept_sections.h"
#include "tests/unit/core/core_fixture.h"

using namespace kvist;
using namespace kvist::core;

namespace {

// What a shard's bytes are: which store has made them.
using Content = uint64_t;
using Name = std::tuple<uint32_t, uint16_t, ChunkKey, uint16_t>;  // space, group, key, shard

// The drivers: a pool whose slots remember what was written into them, a disk, a remote store that others write to and remove from, and what
// is under way between them.
class DiskWorld {
 public:
  struct Shape {
    uint16_t shards = 1;
    bool window = false;  // a second group, of which the last two chunks are needed
    uint32_t slabs = 2;   // of 16 slots
    uint32_t event_work = 16384;
    bool disk = true;
    bool remote = false;
    bool loses = false;    // segments of the disk are given up
    bool recodes = false;  // prompts are encoded there another way
  };
  DiskWorld(uint32_t seed, Shape shape)
      : shape_(shape), seed_(seed), random_(seed), fixture_(OptionsOf(seed, shape), index_.get()) {
    space_ = SpaceNamed("model", std::vector<Bytes>(shape.shards, KiB(4)));
    if (shape.window) {
      space_.groups.push_back(space_.groups[0]);
      space_.groups[1].reuse = {GroupKind::kWindow, 2};
    }
    if (shape.disk) Do(DiskWritable{true});
    if (shape.remote) Do(RemoteReachable{true});
    workers_.resize(shape.shards);
    MakeWorkers();
  }

  void Step() {
    switch (Below(12)) {
      case 0:
      case 1: return Store();
      case 2:
      case 3: return Lookup();
      case 4:
      case 5: return Load();
      case 6: return EndOne();
      case 7: return EndOne();
      case 8: return EndOne();
      case 9: return Release();
      case 10: return Rarely();
      default: return Pass();
    }
  }

  // Everything ends; then all is cleared.
  void Rest() {
    if (shape_.disk) Do(DiskWritable{true});
    if (shape_.disk) Do(DiskTold{});  // clears of the disk wait for it
    if (shape_.remote) Do(RemoteReachable{true});
    while (!asks_.empty()) EndAsk(0);  // some bring leases
    for (int i = 0; i < 10000 && (fixture_.core->status().ops > 0 || !leases_.empty() || fixture_.core->has_work()); ++i) {
      while (Moving()) EndOne();
      Pass();
      if (i % 10 == 9) Release();
    }
    REQUIRE(fixture_.core->status().ops == 0);
    while (Moving()) EndOne();
    for (int i = 0; i < 10000 && fixture_.core->jobs().busy(); ++i) {
      Pass();
      EndOne();
    }
    REQUIRE_FALSE(fixture_.core->jobs().busy());
    // What is there is durable when a flush says so.
    last_flush_ = RequestTag{++tags_};
    Do(FlushAsked{std::nullopt, last_flush_});
    for (int i = 0; i < 10000 && !last_flushed_.has_value(); ++i) {
      Pass();
      if (!writes_.empty()) EndWrite(0);
    }
    REQUIRE(last_flushed_.has_value());
    CHECK(last_flushed_->chunks <= static_cast<uint64_t>(std::count_if(rows_.begin(), rows_.end(), [&](const auto& row) {
            return !Lost(row.second.places);
          })));
    if (shape_.remote) Do(RemoteReachable{false});
    while (!copies_.empty() || !reads_.empty()) EndOne();
    if (shape_.disk) Do(DiskWritable{false});
    while (Moving()) EndOne();
    Do(ClearAsked{JobId{++jobs_}});
    for (int i = 0; i < 1000 && fixture_.core->has_work(); ++i) Pass();
    for (int i = 0; i < 4; ++i) Pass();
    const CoreStatus status = fixture_.core->status();
    CHECK(status.chunks == 0);
    CHECK(status.ops == 0);
    CHECK(status.leases == 0);
    CHECK(fixture_.slots->live_slots() == 0);
    CHECK(disk_.empty());
    CHECK(rows_.empty());
  }

  CoreStatus sum;  // of all lives that have ended, and Count
  void Count() {
    const CoreStatus status = fixture_.core->status();
    sum.chunks_written += status.chunks_written;
    sum.chunks_read += status.chunks_read;
    sum.chunks_moved += status.chunks_moved;
    sum.chunks_recoded += status.chunks_recoded;
    sum.chunks_recomputed += status.chunks_recomputed;
    sum.chunks_reclaimed += status.chunks_reclaimed;
    sum.chunks_found += status.chunks_found;
    sum.reads_failed += status.reads_failed;
    sum.demotions += status.demotions;
    sum.evictions += status.evictions;
    sum.remote_chunks_found += status.remote_chunks_found;
    sum.remote_chunks_read += status.remote_chunks_read;
    sum.remote_reads_failed += status.remote_reads_failed;
    sum.remote_chunks_written += status.remote_chunks_written;
    sum.remote_unanswered += status.remote_unanswered;
  }
  uint64_t waited = 0, streamed = 0, loads = 0, restarts = 0, flushed = 0, kept = 0, in_doubt = 0, landed = 0;
  uint64_t prompts_cleared = 0, tiers_cleared = 0, moves = 0, rows_left = 0, losses = 0, uses_noted = 0, uses_found = 0;

 private:
  static CoreFixture::Options OptionsOf(uint32_t seed, Shape shape) {
    CoreFixture::Options options;
    options.slabs = shape.slabs;
    if (shape.remote)
      options.core.remote = CoreOptions::Remote{.writing = KiB(12), .queue = 24, .pause = absl::Milliseconds(200)};
    if (shape.disk)
      options.core.disk =
          CoreOptions::Disk{.reserve = KiB(16), .writing = KiB(12), .writes = 2 + seed % 3, .capacity = KiB(96)};
    options.core.event_work = shape.event_work;
    options.core.slice_work = 32;
    options.core.doubt = absl::Milliseconds(500);
    options.core.lease_share = 0.7;
    options.core.eviction = seed % 2 == 0 ? Eviction::kLru : Eviction::kLhd;
    return options;
  }
  struct Copy {
    OpId op;
    Direction direction;
    uint16_t shard = 0;
    GroupId group;
    std::vector<ChunkKey> keys;  // [slot]
    std::vector<SlotRef> slots;
    std::vector<ChunkRef> coming;  // that were still being read when it began
    uint64_t number = 0;
  };
  struct Lease {
    LeaseId id;
    std::vector<ChunkKey> keys;  // of its position
  };
  struct Asked {  // a load that waits
    uint16_t shard;
    GroupId group;
    std::vector<ChunkKey> keys;
  };

  SessionId Worker(uint16_t rank) {
    const SessionId session{fixture_.next_session++};
    Do(SessionOpened{session, "engine", Role::kWorker, Rank{rank}, space_});
    return session;
  }
  void MakeWorkers() {
    for (uint16_t rank = 0; rank < shape_.shards; ++rank) workers_[rank] = Worker(rank);
  }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  Name NameOf(GroupId group, const ChunkKey& key, uint16_t shard) const { return {0, group.value, key, shard}; }

  // A path of a tree with few branches: chunk n has the children 2n + 1 and 2n + 2.
  std::vector<ChunkKey> Path() {
    std::vector<ChunkKey> keys;
    const uint32_t length = 1 + Below(7);
    for (uint64_t n = 0; keys.size() < length; n = 2 * n + 1 + (Below(4) == 0)) keys.push_back(KeyOf(n));
    return keys;
  }

  template <class Event>
  void Do(const Event& event, Asked asked = {}) {
    const uint64_t before = fixture_.core->work();
    const Effects effects = fixture_.Do(event);
    CHECK(fixture_.core->work() - before <= fixture_.core->options().EventWorkBound());
    for (const Effect& effect : effects) std::visit([&](const auto& e) { Carry(e, asked); }, effect);
    for (const ClearKept& kept_clear : std::exchange(kept_clears_, {})) Do(kept_clear);
  }

  void Store() {
    const auto rank = static_cast<uint16_t>(Below(shape_.shards));
    const GroupId group{static_cast<uint16_t>(Below(shape_.window ? 2 : 1))};
    const std::vector<ChunkKey> keys = Path();
    Do(StoreAsked{workers_[rank], RequestTag{++tags_}, group, {}, keys}, {rank, group, keys});
  }
  void Lookup() {
    const std::vector<ChunkKey>& keys = lookups_[++tags_] = Path();
    Do(LookupAsked{workers_[0], RequestTag{tags_}, keys, Below(4) == 0 ? absl::ZeroDuration() : absl::Seconds(5)});
  }
  void Load() {
    if (leases_.empty()) return;
    const Lease& lease = leases_[Below(static_cast<uint32_t>(leases_.size()))];
    const auto rank = static_cast<uint16_t>(Below(shape_.shards));
    const GroupId group{static_cast<uint16_t>(Below(shape_.window ? 2 : 1))};
    const auto chunks = static_cast<uint32_t>(lease.keys.size());
    const uint32_t needed = space_.groups[group.value].reuse.FirstNeeded(chunks);
    const uint32_t first = needed + Below(chunks - needed);
    const uint32_t count = 1 + Below(chunks - first);
    Do(LoadAsked{workers_[rank], RequestTag{++tags_}, lease.id, group, first, count},
       {rank, group, {lease.keys.begin() + first, lease.keys.begin() + first + count}});
  }
  void Release() {
    if (leases_.empty()) return;
    const uint32_t i = Below(static_cast<uint32_t>(leases_.size()));
    Do(ReleaseAsked{workers_[0], leases_[i].id});
    leases_.erase(leases_.begin() + i);
  }
  void Pass() {
    now_ += absl::Milliseconds(100);
    if (now_ >= late_until_) late_.clear();
    if (Below(2) == 0) LandLate();
    const Core& core = *fixture_.core;
    const bool had_work = core.has_work();
    const uint64_t before = core.work();
    Do(Tick{now_});
    // Else whoever calls Tick as long as there is work would never do anything else.
    if (had_work && core.work() == before) CHECK_FALSE(core.has_work());
  }
  // What happens beyond the node.
  void Elsewhere() {
    if (Below(8) == 0) return Do(RemoteReachable{Below(4) != 0});
    const std::vector<ChunkKey> keys = Path();
    const auto group = static_cast<uint16_t>(Below(shape_.window ? 2 : 1));
    for (const ChunkKey& key : keys) {
      if (Below(4) == 0) continue;
      remote_.insert({remote_generation_, group, key});
      gone_.erase({group, key});  // stored anew, by another
    }
    if (Below(3) == 0) remote_.erase({remote_generation_, group, keys.back()});
  }
  void Rarely() {
    if (shape_.recodes && Below(4) == 0) return Recode();
    if (shape_.remote && Below(3) != 0) return Elsewhere();
    if (!shape_.disk && Below(3) == 0) return Restart();
    switch (Below(9)) {
      case 8:
        switch (Below(12)) {
          case 0: return ClearPrompt();  // and all prompts, for they begin in the same way
          case 1: return Do(JobCancelAsked{JobId{jobs_ - Below(2)}});
          case 2:
          case 3:
          case 4: return Move();
          case 5:
          case 6: return ClearTier();
          default: return;
        }
      case 0:
        if (Below(6) == 0) Do(ClearAsked{JobId{++jobs_}});
        return;
      case 1: {
        if (shape_.disk) Do(DiskWritable{Below(4) != 0});
        return;
      }
      case 7: {  // what is worth a load changes
        const double chunks = 1 + Below(4);
        Do(PrefillReported{workers_[0], static_cast<double>(Below(6)), chunks, chunks * absl::Microseconds(1 + Below(200))});
        const Tier from = shape_.remote && Below(2) == 0 ? Tier::kRemote : Tier::kSsd;
        return Do(TierRead{KiB(4) * (1 + Below(8)), Below(2) == 0, absl::Microseconds(1 + Below(300)), from});
      }
      case 2: {  // a segment is to be used again: that of the oldest places, mostly
        PlacesWanted wanted;
        for (const auto& [unit, name] : disk_) {
          if (Below(3) != 0)
            wanted.records.push_back({SpaceId{0}, GroupId{std::get<1>(name)}, std::get<2>(name), {1, unit}});
          if (wanted.records.size() == 3) break;
        }
        if (Below(4) == 0) wanted.records.push_back({SpaceId{0}, GroupId{0}, KeyOf(Below(9)), {1, 1 + Below(units_ + 1)}});
        if (shape_.loses && Below(2) == 0) return Lose(std::move(wanted.records));
        return Do(wanted);
      }
      case 6: {
        if (Below(3) != 0)
          return Do(FlushAsked{Below(3) == 0 ? std::nullopt : std::optional(workers_[0]), RequestTag{++tags_}});
        return Restart();
      }
      case 3: {
        if (copies_.empty()) return;
        return Do(CancelAsked{copies_[Below(static_cast<uint32_t>(copies_.size()))].op});
      }
      case 4: {
        if (waiting_.empty()) return;
        const OpId op = OpId::Unpack(waiting_.begin()->first);
        waiting_.erase(waiting_.begin());
        return Do(CancelAsked{op});
      }
      case 5: {  // a rank dies, and returns
        const auto rank = static_cast<uint16_t>(Below(shape_.shards));
        const SessionId dead = workers_[rank];
        if (rank == 0) leases_.clear();
        for (auto waits = waiting_.begin(); waits != waiting_.end();)
          waits = waits->second.shard == rank ? waiting_.erase(waits) : std::next(waits);
        Do(SessionClosed{dead});
        for (size_t i = copies_.size(); i-- > 0;) {
          if (copies_[i].shard == rank) EndCopy(i);
        }
        workers_[rank] = Worker(rank);
        return;
      }
      default: return;
    }
  }

  void Lose(std::vector<PlacesWanted::Record> records) {
    std::erase_if(records, [&](const PlacesWanted::Record& record) { return !disk_.contains(record.place.unit); });
    for (PlacesWanted::Record& record : records) {
      std::tie(std::ignore, record.group.value, record.key, std::ignore) = disk_.at(record.place.unit);
      given_up_.insert(record.place.unit);
    }
    ++losses;
    Do(PlacesLost{std::move(records), /*damaged=*/Below(2) == 0});
  }
  bool Lost(std::span<const DiskPlace> places) const {
    return std::any_of(places.begin(), places.end(), [&](DiskPlace place) { return given_up_.contains(place.unit); });
  }

  void ClearPrompt() {
    if (fixture_.core->jobs().full()) return;
    const std::vector<ChunkKey> keys = Path();
    const JobId job{++jobs_};
    for (uint16_t group = 0; group < space_.groups.size(); ++group) {
      for (const ChunkKey& key : keys) gone_[{group, key}] = {job, copies_begun_};
    }
    ++prompts_cleared;
    Do(PromptClearAsked{job, SpaceId{0}, keys});
    CHECK(HitsOf(keys) == 0);
  }
  void Move() {
    if (fixture_.core->jobs().full()) return;
    std::vector<std::pair<Tier, Tier>> ways;
    if (shape_.disk) ways = {{Tier::kSsd, Tier::kDram}, {Tier::kDram, Tier::kSsd}};
    if (shape_.remote) ways.insert(ways.end(), {{Tier::kRemote, Tier::kDram}, {Tier::kDram, Tier::kRemote}});
    if (shape_.disk && shape_.remote) ways.insert(ways.end(), {{Tier::kRemote, Tier::kSsd}, {Tier::kSsd, Tier::kRemote}});
    const auto [from, to] = ways[Below(static_cast<uint32_t>(ways.size()))];
    const std::vector<ChunkKey> keys = Path();
    ++moves;
    Do(MoveAsked{
        .job = JobId{++jobs_}, .space = SpaceId{0}, .keys = keys, .from = from, .to = to, .keep_source = Below(2) == 0});
  }
  void Recode() {
    if (fixture_.core->jobs().full()) return;
    const std::vector<ChunkKey> keys = Path();
    RecodeAsked recode{.job = JobId{++jobs_}, .tier = Tier::kSsd, .space = SpaceId{0}, .keys = keys};
    recode.method = static_cast<uint8_t>(Below(3));
    recode.kind = recode.method == 0 ? JobKind::kDecompress : JobKind::kCompress;
    Do(recode);
  }
  void ClearTier() {
    if (fixture_.core->jobs().full()) return;
    std::vector<Tier> tiers{Tier::kDram};
    if (shape_.disk) tiers.push_back(Tier::kSsd);
    if (shape_.remote) tiers.push_back(Tier::kRemote);
    const std::vector<ChunkKey> keys = Below(2) == 0 ? Path() : std::vector<ChunkKey>();
    ++tiers_cleared;
    Do(TierClearAsked{.job = JobId{++jobs_},
                      .tier = tiers[Below(static_cast<uint32_t>(tiers.size()))],
                      .space = SpaceId{0},
                      .keys = keys});
  }
  // A restart finds what no job has made durable.
  void ForgetUnkept() {
    std::erase_if(gone_, [this](const auto& gone) { return !done_.contains(gone.second.job); });
    hides_.clear();
  }

  // How many chunks of the path are hits, leased by nobody.
  uint32_t HitsOf(const std::vector<ChunkKey>& path) {
    lookups_[++tags_] = path;
    const Effects effects = fixture_.Do(LookupAsked{workers_[0], RequestTag{tags_}, path, absl::ZeroDuration()});
    uint32_t chunks = 0;
    for (const Effect& effect : effects) {
      if (const auto* answer = std::get_if<LookupAnswered>(&effect)) chunks = answer->chunks;
      std::visit([&](const auto& e) { Carry(e, {}); }, effect);
    }
    return chunks;
  }

  // The daemon dies and comes back, now and then with its pool. What neither that nor the catalog tells of is nobody's any more.
  void Restart() {
    ++restarts;
    Count();
    const bool warm = Below(2) == 0;
    std::vector<std::pair<std::vector<ChunkKey>, uint32_t>> hits;
    for (int i = 0; i < 4; ++i) {
      const std::vector<ChunkKey> path = Path();
      hits.emplace_back(path, HitsOf(path));
    }
    for (const Copy& copy : copies_) {
      for (const SlotRef slot : copy.slots) {
        if (copy.direction == Direction::kStore) slots_[slot.index] = {};
      }
    }
    late_ = reads_;
    late_until_ = now_ + absl::Milliseconds(500);
    copies_.clear();
    leases_.clear();
    waiting_.clear();
    tag_of_.clear();
    writes_.clear();
    reads_.clear();
    ForgetUnkept();
    lost_.clear();
    asks_.clear();
    forgets_.clear();
    remote_writes_.clear();
    lookups_.clear();
    last_flushed_.reset();
    hidden_writes_.clear();
    left_.clear();
    const std::unique_ptr<kvist::test::KeptSections> before = std::move(index_);
    index_ = std::make_unique<kvist::test::KeptSections>();
    fixture_.Restart(OptionsOf(seed_, shape_), index_.get());
    if (warm) {
      Do(SpaceFound{space_});
      const LeftIndex left(before->sections());
      const Core::TakenOver told = fixture_.core->TakeOver(left, std::vector<std::optional<SpaceId>>{SpaceId{0}});
      fixture_.watched = false;
      fixture_.core->CheckInvariants();
      kept += told.chunks;
      in_doubt += told.in_doubt;
    } else {
      slots_.clear();
      late_.clear();
    }
    std::erase_if(rows_, [this](const auto& row) { return Lost(row.second.places); });
    doomed_.clear();
    std::vector<ChunksFound::Found> all;
    std::map<uint32_t, Name> told;
    for (const auto& [name, row] : rows_) {
      all.push_back(row);
      for (const DiskPlace place : row.places) told[place.unit] = disk_.at(place.unit);
    }
    disk_ = told;
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.position < b.position; });
    const bool early = Below(2) == 0;  // engines are there before the rows
    if (early) MakeWorkers();
    Do(SpaceFound{space_});
    REQUIRE(fixture_.core->FindSpace(space_.digest) == SpaceId{0});
    for (size_t at = 0; at < all.size(); at += 3) {
      const size_t end = std::min(at + 3, all.size());
      Do(ChunksFound{SpaceId{0}, {all.begin() + static_cast<ptrdiff_t>(at), all.begin() + static_cast<ptrdiff_t>(end)}});
      if (early && Below(2) == 0) Store();
      if (early) EndOne();
    }
    // All of it is a hit again, or was freed.
    if (!early && !warm) CHECK(fixture_.core->status().below == rows_.size());
    for (const auto& [name, row] : rows_) CHECK(disk_.contains(row.places[0].unit));
    if (!early) MakeWorkers();
    last_period_ = 0;
    const int32_t last = uses_.empty() ? 0 : std::prev(uses_.end())->first;
    for (const auto& [period, used] : std::exchange(uses_, {})) {
      for (const DiskUses::Use& use : used) {
        if (period <= last - 3) break;
        uses_[period - last].push_back(use);
        Do(UsesFound{{period - last, Bytes{}, {use}}});
        ++uses_found;
      }
    }
    if (shape_.disk) Do(DiskWritable{true});
    if (shape_.disk) Do(DiskTold{});
    if (shape_.remote) Do(RemoteReachable{true});
    if (early || !warm || shape_.remote || shape_.loses)
      return;  // what only a lease had kept of the remote store's is asked for again
    for (const auto& [path, chunks] : hits) CHECK(HitsOf(path) >= chunks);
  }
  // A read of a daemon that is gone ends now.
  void LandLate() {
    if (late_.empty()) return;
    const size_t i = Below(static_cast<uint32_t>(late_.size()));
    const ReadStarted read = late_[i];
    late_.erase(late_.begin() + static_cast<ptrdiff_t>(i));
    ++landed;
    for (uint16_t shard = 0; shard < read.slots.size(); ++shard)
      slots_[read.slots[shard].index] = NameOf(read.group, read.key, shard);
  }

  void EndOne() {
    if (Below(4) == 0) LandLate();
    if (!hides_.empty() && Below(3) == 0) return EndHide();
    if (!forgets_.empty() && Below(3) == 0) return EndForget();
    const size_t all = copies_.size() + writes_.size() + reads_.size() + asks_.size() + remote_writes_.size();
    if (all == 0) return;
    size_t i = Below(static_cast<uint32_t>(all));
    if (i < copies_.size()) return EndCopy(i);
    if ((i -= copies_.size()) < writes_.size()) return EndWrite(i);
    if ((i -= writes_.size()) < reads_.size()) return EndRead(i);
    if ((i -= reads_.size()) < asks_.size()) return EndAsk(i);
    EndRemoteWrite(i - asks_.size());
  }
  bool Moving() const {
    return !copies_.empty() || !writes_.empty() || !reads_.empty() || !asks_.empty() || !remote_writes_.empty() ||
           !hides_.empty() || !forgets_.empty();
  }
  void EndAsk(size_t i) {
    const RemoteAsked ask = asks_[i];
    asks_.erase(asks_.begin() + static_cast<ptrdiff_t>(i));
    RemoteFound found{ask.ask, Below(8) == 0 ? absl::DeadlineExceededError("slow") : absl::OkStatus()};
    for (uint16_t g = 0; found.status.ok() && g < space_.groups.size(); ++g) {
      for (const ChunkKey& key : ask.keys) found.there.push_back(remote_.contains({remote_generation_, g, key}));
    }
    Do(found);
  }
  void EndRemoteWrite(size_t i) {
    const auto [write, generation] = remote_writes_[i];
    remote_writes_.erase(remote_writes_.begin() + static_cast<ptrdiff_t>(i));
    for (uint16_t shard = 0; shard < write.slots.size(); ++shard)
      CHECK(slots_[write.slots[shard].index] == NameOf(write.group, write.key, shard));
    WriteFinished finished{
        write.chunk, Below(6) == 0 ? absl::UnavailableError("gone") : absl::OkStatus(), {}, Tier::kRemote};
    if (finished.status.ok()) remote_.insert({generation, write.group.value, write.key});
    Do(finished);
  }
  bool Reading(ChunkRef chunk) const {
    return std::any_of(reads_.begin(), reads_.end(), [&](const ReadStarted& read) { return read.chunk == chunk; });
  }
  void EndCopy(size_t i) {
    const Copy copy = copies_[i];
    const bool waits = std::any_of(copy.coming.begin(), copy.coming.end(), [&](ChunkRef chunk) { return Reading(chunk); });
    const bool lost = std::any_of(copy.coming.begin(), copy.coming.end(),
                                  [&](ChunkRef chunk) { return chunk && lost_.contains(chunk.Pack()); });
    if (waits && Below(4) != 0 && !lost) return;
    streamed += !copy.coming.empty() && !waits && !lost;
    copies_.erase(copies_.begin() + static_cast<ptrdiff_t>(i));
    // All layers of one shard may be there before the core hears of the read's end.
    const bool ok = Below(10) != 0 && (!waits || Below(2) == 0) && !lost;
    for (size_t s = 0; s < copy.slots.size(); ++s) {
      const ChunkRef coming = copy.coming.empty() ? ChunkRef{} : copy.coming[s];
      if (coming && Reading(coming)) continue;
      Name name = NameOf(copy.group, copy.keys[s], copy.shard);
      if (coming && lost_.contains(coming.Pack())) name = {};
      if (copy.direction == Direction::kStore) {
        slots_[copy.slots[s].index] = name;
        const auto gone = gone_.find({copy.group.value, copy.keys[s]});
        if (ok && gone != gone_.end() && gone->second.copies < copy.number) gone_.erase(gone);
      } else {
        CHECK(slots_[copy.slots[s].index] == name);  // also when it ends: nothing wrote there meanwhile
      }
    }
    absl::Status status;
    if (!ok) status = lost ? absl::DataLossError("a read has failed") : absl::CancelledError("given up");
    Do(CopyFinished{copy.op, status});
  }
  void EndForget() {
    const auto [forgotten, generation] = forgets_.front();
    forgets_.erase(forgets_.begin());
    for (const ChunkKey& key : forgotten.keys) {
      for (uint16_t g = 0; g < space_.groups.size(); ++g) remote_.erase({generation, g, key});
    }
    Do(RemoteForgot{forgotten.job, forgotten.space, forgotten.keys});
  }
  void EndHide() {
    const JobId job = hides_.front();
    hides_.erase(hides_.begin());
    Do(ClearKept{job});
  }
  void EndWrite(size_t i) {
    const WriteStarted write = writes_[i];
    writes_.erase(writes_.begin() + static_cast<ptrdiff_t>(i));
    WriteFinished finished{write.chunk, absl::OkStatus()};
    if (hidden_writes_.erase(write.chunk.Pack()) > 0) {
      finished.status = absl::CancelledError("hidden meanwhile");
      return Do(finished);
    }
    if (Below(6) == 0) {
      finished.status = Below(2) == 0 ? absl::UnavailableError("EIO") : absl::ResourceExhaustedError("full");
      if (write.method != 0 && Below(4) == 0) finished.status = absl::DataLossError("its slots have changed");
      return Do(finished);
    }
    if (write.method != 0 && Below(3) == 0) {  // it would be no smaller
      if (write.may_stay) finished.status = absl::AlreadyExistsError("no smaller");
      if (write.may_stay) return Do(finished);
    } else if (write.method != 0) {
      finished.form = {write.method, Bytes{1 + Below(4095)}};
    }
    CHECK((shape_.recodes || finished.form == DiskForm{}));
    for (uint16_t shard = 0; shard < write.slots.size(); ++shard) {
      CHECK(slots_[write.slots[shard].index] == NameOf(write.group, write.key, shard));
      finished.places.push_back({1, ++units_});
      disk_[units_] = slots_[write.slots[shard].index];
      forms_[units_] = finished.form;
    }
    // Of two writes of one chunk the one that began last counts.
    uint64_t& put = last_put_[{write.group.value, write.key}];
    if (begun_[write.slots[0].index] > put) {
      put = begun_[write.slots[0].index];
      rows_[{write.group.value, write.key}] = {write.group,     write.key, write.parent, write.position,
                                               finished.places, {},        finished.form};
      if (const auto replaced = left_.extract({write.group.value, write.key}); !replaced.empty())
        DropLeft(replaced.mapped());
    }
    Do(finished);
  }
  void EndRead(size_t i) {
    const ReadStarted read = reads_[i];
    reads_.erase(reads_.begin() + static_cast<ptrdiff_t>(i));
    ReadFinished finished{read.chunk, absl::OkStatus()};
    if (read.from == Tier::kRemote) {
      const auto asked = read_generation_.extract(read.chunk.Pack());
      const bool there = remote_.contains({asked.mapped(), read.group.value, read.key});
      if (!there) {
        lost_.insert(read.chunk.Pack());
        finished.status = absl::NotFoundError("gone");
      }
      for (uint16_t shard = 0; shard < read.slots.size(); ++shard)
        slots_[read.slots[shard].index] = there ? NameOf(read.group, read.key, shard) : Name{};
    }
    for (uint16_t shard = 0; read.from == Tier::kSsd && shard < read.slots.size(); ++shard) {
      const auto found = disk_.find(read.places[shard].unit);
      REQUIRE(found != disk_.end());  // places stay while they are read
      CHECK(found->second == NameOf(read.group, read.key, shard));
      CHECK(read.form == forms_.at(read.places[shard].unit));
      slots_[read.slots[shard].index] = found->second;
    }
    const bool doomed = doomed_.erase(read.chunk.Pack()) > 0;
    if (finished.status.ok() && (doomed || Below(8) == 0)) {
      for (const SlotRef slot : read.slots) slots_[slot.index] = {};
      lost_.insert(read.chunk.Pack());
      finished.status = !doomed && Below(2) == 0 ? absl::DataLossError("checksum") : absl::UnavailableError("EIO");
    }
    Do(finished);
  }

  void Begin(const CopyStarted& copy, const Asked& asked) {
    Copy begun{copy.op, copy.direction, asked.shard, asked.group, {}, copy.slots, copy.coming, ++copies_begun_};
    for (size_t s = 0; s < copy.slots.size(); ++s) {
      begun.keys.push_back(asked.keys.at(copy.chunk_of[s]));
      const bool coming = !copy.coming.empty() && copy.coming[s];
      if (coming) CHECK(Reading(copy.coming[s]));
      if (copy.direction == Direction::kLoad && !coming)
        CHECK(slots_[copy.slots[s].index] == NameOf(asked.group, begun.keys.back(), asked.shard));
    }
    loads += copy.direction == Direction::kLoad;
    copies_.push_back(std::move(begun));
  }
  void Carry(const CopyStarted& copy, const Asked& asked) {
    const auto waits = waiting_.find(copy.op.Pack());
    if (waits == waiting_.end()) return Begin(copy, asked);
    ++waited;
    const Asked before = waits->second;
    waiting_.erase(waits);
    Begin(copy, before);
  }
  void Carry(const CopyWaits& waits, const Asked& asked) {
    waiting_[waits.op.Pack()] = asked;
    tag_of_[waits.op.Pack()] = waits.tag;
  }
  void Carry(const LookupAnswered& answer, const Asked&) {
    const auto asked = lookups_.extract(answer.tag.value);
    REQUIRE(!asked.empty());  // once
    const std::vector<ChunkKey>& keys = asked.mapped();
    REQUIRE(answer.chunks <= keys.size());
    CHECK(answer.coming <= 2 * answer.chunks);
    for (uint16_t group = 0; group < space_.groups.size(); ++group) {
      for (uint32_t k = space_.groups[group].reuse.FirstNeeded(answer.chunks); k < answer.chunks; ++k)
        CHECK_FALSE(gone_.contains({group, keys[k]}));
    }
    if (answer.lease) leases_.push_back({answer.lease, {keys.begin(), keys.begin() + answer.chunks}});
  }
  void Carry(const RemoteForgotten& forgotten, const Asked&) { forgets_.emplace_back(forgotten, remote_generation_); }
  void Carry(const RemoteAsked& ask, const Asked&) {
    CHECK(!ask.keys.empty());
    asks_.push_back(ask);
  }
  void Carry(const WriteStarted& write, const Asked&) {
    if (write.to == Tier::kRemote) {
      remote_writes_.emplace_back(write, remote_generation_);
      CHECK(remote_writes_.size() <= 3);
      return;
    }
    begun_[write.slots[0].index] = ++next_write_;
    writes_.push_back(write);
    CHECK(writes_.size() <= 2 + seed_ % 3);  // more are not given to a disk at a time
  }
  void Carry(const ReadStarted& read, const Asked&) {
    CHECK(read.places.empty() == (read.from == Tier::kRemote));
    if (read.from == Tier::kRemote) read_generation_[read.chunk.Pack()] = remote_generation_;
    if (Lost(read.places)) doomed_.insert(read.chunk.Pack());
    reads_.push_back(read);
  }
  void Carry(const PlacesFreed& freed, const Asked&) {
    for (const PlacesFreed::Chunk& chunk : freed.chunks) {
      REQUIRE(chunk.places.size() == shape_.shards);
      const std::pair name{chunk.group.value, chunk.key};
      const auto row = rows_.find(name);
      if (chunk.row_stays) {
        REQUIRE(row != rows_.end());
        CHECK(row->second.places[0] == chunk.places[0]);
        CHECK(left_.emplace(name, row->second.places).second);
        ++rows_left;
        continue;
      }
      if (row == rows_.end()) {
        // An older copy, whose row went with the newer one's, or a newer one was hidden since.
        CHECK((!chunk.replaced || hidden_rows_.contains({chunk.group.value, chunk.key})));
      } else {
        const bool tells = row->second.places[0] == chunk.places[0];
        if (tells) CHECK_FALSE(chunk.replaced);
        if (!chunk.replaced && !left_.contains(name)) rows_.erase(row);
      }
      for (uint16_t shard = 0; shard < shape_.shards; ++shard) {
        const auto there = disk_.find(chunk.places[shard].unit);
        REQUIRE(there != disk_.end());  // once
        CHECK(there->second == NameOf(chunk.group, chunk.key, shard));
        CHECK(chunk.form == forms_.at(there->first));
        disk_.erase(there);
      }
    }
  }
  void DropLeft(std::span<const DiskPlace> places) {
    for (const DiskPlace place : places) CHECK(disk_.erase(place.unit) == 1);
  }
  void DropLeft() {
    for (const auto& [name, places] : std::exchange(left_, {})) {
      if (rows_.erase(name) > 0) hidden_rows_.insert(name);
      DropLeft(places);
    }
  }
  void Carry(const UsesNoted& of, const Asked&) {
    CHECK(of.noted.uses.size() <= Core::kPlacesMax);
    CHECK(of.noted.period <= std::exchange(last_period_, std::max(last_period_, of.noted.period)) + 1);
    for (const DiskUses::Use& use : of.noted.uses) {
      uses_[of.noted.period].push_back(use);
      ++uses_noted;
    }
  }
  void Carry(const ChunksHidden& hidden, const Asked&) {
    DropLeft();
    for (const ChunksHidden::Chunk& chunk : hidden.chunks) {
      if (rows_.erase({chunk.group.value, chunk.key}) > 0) hidden_rows_.insert({chunk.group.value, chunk.key});
      for (const WriteStarted& write : writes_) {
        if (write.group == chunk.group && write.key == chunk.key) hidden_writes_.insert(write.chunk.Pack());
      }
    }
    hides_.push_back(hidden.job);
  }
  void Carry(const JobEnded& ended, const Asked&) {
    if (ended.how == JobState::kDone) done_.insert(ended.job);
  }
  void Carry(const SpaceCleared& cleared, const Asked&) {
    if (cleared.tier.value_or(Tier::kSsd) == Tier::kSsd) {
      DropLeft();
      for (const auto& [name, row] : rows_) hidden_rows_.insert(name);
      rows_.clear();
      for (const WriteStarted& write : writes_) hidden_writes_.insert(write.chunk.Pack());
      if (shape_.disk) kept_clears_.push_back({cleared.job, Tier::kSsd});
    }
    if (cleared.tier.value_or(Tier::kRemote) != Tier::kRemote) return;
    ++remote_generation_;
    if (shape_.remote) kept_clears_.push_back({cleared.job, Tier::kRemote});
  }
  void Carry(const Flushed& said, const Asked&) {
    flushed += said.status.ok();
    if (said.tag == last_flush_) last_flushed_ = said;
  }
  void Carry(const OpEnded& ended, const Asked&) {
    std::erase_if(waiting_,
                  [&](const auto& waits) { return tag_of_.contains(waits.first) && tag_of_[waits.first] == ended.tag; });
  }
  template <class Other>
  void Carry(const Other&, const Asked&) {}

  const Shape shape_;
  const uint32_t seed_;
  std::mt19937 random_;
  std::unique_ptr<kvist::test::KeptSections> index_ = std::make_unique<kvist::test::KeptSections>();
  CoreFixture fixture_;
  SpaceSpec space_;
  std::vector<SessionId> workers_;  // [rank]; rank 0 also asks
  absl::Time now_ = absl::UnixEpoch();
  uint64_t tags_ = 0, jobs_ = 0;
  uint32_t units_ = 0;
  std::map<uint64_t, std::vector<ChunkKey>> lookups_;  // [tag] that aren't answered yet
  std::vector<Lease> leases_;
  std::vector<Copy> copies_;
  std::map<uint64_t, Asked> waiting_;      // [op]
  std::map<uint64_t, RequestTag> tag_of_;  // [op] of those that wait
  std::vector<WriteStarted> writes_;
  std::vector<ReadStarted> reads_;
  std::vector<ReadStarted> late_;  // of a daemon that is gone, and until when they may end
  absl::Time late_until_ = absl::InfiniteFuture();
  std::set<uint64_t> lost_;                                               // chunks whose reads have failed
  std::set<uint32_t> given_up_;                                           // units that were told to be lost
  std::set<uint64_t> doomed_;                                             // chunks that are being read from such
  std::map<uint64_t, Name> slots_;                                        // [slot]
  std::map<uint32_t, Name> disk_;                                         // [unit]
  std::map<uint32_t, DiskForm> forms_;                                    // [unit] of all that ever were written
  std::map<std::pair<uint16_t, ChunkKey>, ChunksFound::Found> rows_;      // the catalog
  std::map<std::pair<uint16_t, ChunkKey>, std::vector<DiskPlace>> left_;  // where of them lead that the core has forgotten
  std::map<std::pair<uint16_t, ChunkKey>, uint64_t> last_put_;            // the write that a row is of
  std::map<uint32_t, uint64_t> begun_;                                    // [slot] the write from it
  uint64_t next_write_ = 0;
  std::map<int32_t, std::vector<DiskUses::Use>> uses_;  // [period]
  int32_t last_period_ = 0;
  std::set<std::tuple<uint64_t, uint16_t, ChunkKey>> remote_;  // generation, group, key; a clear begins another generation
  uint64_t remote_generation_ = 0;
  std::map<uint64_t, uint64_t> read_generation_;  // [chunk] of reads from the remote store
  std::vector<std::pair<WriteStarted, uint64_t>> remote_writes_;
  std::vector<RemoteAsked> asks_;
  std::vector<std::pair<RemoteForgotten, uint64_t>> forgets_;  // in a generation
  std::vector<ClearKept> kept_clears_;                         // to be said when what goes with the clear was carried out
  struct Gone {
    JobId job;
    uint64_t copies;  // that had begun before
  };
  std::map<std::pair<uint16_t, ChunkKey>, Gone> gone_;  // cleared, and not stored since
  std::set<JobId> done_;
  std::vector<JobId> hides_;  // that aren't durable yet
  std::set<std::pair<uint16_t, ChunkKey>> hidden_rows_;
  std::set<uint64_t> hidden_writes_;  // chunks whose writes come too late
  uint64_t copies_begun_ = 0;
  RequestTag last_flush_;
  std::optional<Flushed> last_flushed_;
};

}  // namespace

TEST_CASE("What was stored is what is loaded, from slots, disk and a store beyond the node") {
  const auto shape = GENERATE(DiskWorld::Shape{.disk = false, .remote = true}, DiskWorld::Shape{.remote = true},
                              DiskWorld::Shape{.shards = 2, .window = true, .slabs = 1, .remote = true},
                              DiskWorld::Shape{.shards = 2, .window = true, .event_work = 64, .disk = false, .remote = true},
                              DiskWorld::Shape{.event_work = 64, .remote = true, .recodes = true});
  CoreStatus sum;
  uint64_t streamed = 0;
  // A load waited for ever for a chunk that had lost the one below it, and then its slots; and one for slots that a move kept. What is detached lost its slots
  // before it was collected, and was still said to be in the store: the check of the index took that for a bug.
  std::vector<uint32_t> seeds{5346, 293, 93};
  const auto last = static_cast<uint32_t>(kvist::test::Campaign("KVIST_DISK_SEEDS", 60, 1000));
  for (uint32_t seed = 1; seed <= last; ++seed) seeds.push_back(seed);
  for (const uint32_t seed : seeds) {
    CAPTURE(seed, shape.shards, shape.window, shape.disk);
    DiskWorld world(seed, shape);
    for (int step = 0; step < 1500; ++step) world.Step();
    world.Count();
    sum.remote_chunks_found += world.sum.remote_chunks_found;
    sum.remote_chunks_read += world.sum.remote_chunks_read;
    sum.remote_reads_failed += world.sum.remote_reads_failed;
    sum.remote_chunks_written += world.sum.remote_chunks_written;
    sum.remote_unanswered += world.sum.remote_unanswered;
    streamed += world.streamed;
    world.Rest();
  }
  // That all of it was met.
  CHECK(sum.remote_chunks_found > 300);
  CHECK(sum.remote_chunks_read > 200);
  CHECK(sum.remote_reads_failed > 20);
  CHECK(sum.remote_chunks_written > 500);
  CHECK(sum.remote_unanswered > 50);
  CHECK(streamed > 20);
}

TEST_CASE("What was stored is what is loaded, from slots and from disk, and nothing is left in the end") {
  const auto shape = GENERATE(DiskWorld::Shape{}, DiskWorld::Shape{.shards = 2}, DiskWorld::Shape{.window = true},
                              DiskWorld::Shape{.shards = 2, .window = true, .slabs = 1},
                              DiskWorld::Shape{.shards = 2, .window = true, .event_work = 64},
                              DiskWorld::Shape{.shards = 2, .loses = true}, DiskWorld::Shape{.recodes = true},
                              DiskWorld::Shape{.shards = 2, .window = true, .loses = true, .recodes = true});
  CoreStatus sum;
  uint64_t losses = 0;
  uint64_t waited = 0, streamed = 0, loads = 0, restarts = 0, flushed = 0, kept = 0, in_doubt = 0, landed = 0;
  uint64_t prompts_cleared = 0, tiers_cleared = 0, moves = 0, rows_left = 0, uses_noted = 0, uses_found = 0;
  std::vector<uint32_t> seeds{228};  // found places that were lost while their chunk waited to be collected
  const auto last = static_cast<uint32_t>(kvist::test::Campaign("KVIST_DISK_SEEDS", 60, 1000));
  for (uint32_t seed = 1; seed <= last; ++seed) seeds.push_back(seed);
  for (const uint32_t seed : seeds) {
    CAPTURE(seed, shape.shards, shape.window);
    DiskWorld world(seed, shape);
    for (int step = 0; step < 1500; ++step) world.Step();
    world.Count();
    sum.chunks_written += world.sum.chunks_written;
    sum.chunks_read += world.sum.chunks_read;
    sum.chunks_moved += world.sum.chunks_moved;
    sum.chunks_recoded += world.sum.chunks_recoded;
    sum.chunks_recomputed += world.sum.chunks_recomputed;
    sum.chunks_reclaimed += world.sum.chunks_reclaimed;
    sum.chunks_found += world.sum.chunks_found;
    sum.reads_failed += world.sum.reads_failed;
    sum.demotions += world.sum.demotions;
    sum.evictions += world.sum.evictions;
    waited += world.waited;
    streamed += world.streamed;
    loads += world.loads;
    restarts += world.restarts;
    flushed += world.flushed;
    kept += world.kept;
    in_doubt += world.in_doubt;
    landed += world.landed;
    prompts_cleared += world.prompts_cleared;
    tiers_cleared += world.tiers_cleared;
    moves += world.moves;
    rows_left += world.rows_left;
    uses_noted += world.uses_noted;
    uses_found += world.uses_found;
    losses += world.losses;
    world.Rest();
  }
  CHECK((losses > 100) == shape.loses);
  CHECK((sum.chunks_recoded > 50) == shape.recodes);
  // That all of it was met.
  CHECK(sum.chunks_written > 300);
  CHECK(sum.chunks_read > 100);
  CHECK(sum.reads_failed > 10);
  CHECK(sum.demotions > 300);
  CHECK(sum.evictions > sum.demotions);
  CHECK(sum.chunks_moved > 10);
  CHECK(sum.chunks_reclaimed > 10);
  CHECK(restarts > 100);
  CHECK(sum.chunks_found > 100);
  CHECK(flushed > 10);
  CHECK(kept > 100);
  CHECK(in_doubt > 10);
  CHECK(landed > 3);
  CHECK(prompts_cleared > 30);
  CHECK(tiers_cleared > 60);
  CHECK(moves > 100);
  CHECK(rows_left > 5);
  CHECK(uses_noted > 300);
  CHECK(uses_found > 100);
  CHECK(waited > 2);
  CHECK(streamed > 50);
  CHECK(sum.chunks_recomputed > 30);
  CHECK(loads > 1000);
  std::printf(
      "disk: %llu loads, %llu waited for reads to begin, %llu began before those had ended; %llu written, %llu read, %llu "
      "reads failed, %llu of %llu evicted are on "
      "disk\n",
      static_cast<unsigned long long>(loads), static_cast<unsigned long long>(waited),
      static_cast<unsigned long long>(streamed), static_cast<unsigned long long>(sum.chunks_written),
      static_cast<unsigned long long>(sum.chunks_read), static_cast<unsigned long long>(sum.reads_failed),
      static_cast<unsigned long long>(sum.demotions), static_cast<unsigned long long>(sum.evictions));
}
