#ifndef KVIST_TESTS_UNIT_CORE_THREE_TIERS_H_
#define KVIST_TESTS_UNIT_CORE_THREE_TIERS_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {

inline CoreFixture::Options ThreeTiersOptions() {
  CoreFixture::Options options;
  options.core.disk = CoreOptions::Disk{.reserve = Bytes{}};
  options.core.remote = CoreOptions::Remote{};
  options.core.slice_work = GENERATE(1U, 3U, 512U);
  options.core.lease_share = 1;
  return options;
}

// A core over a disk and a store beyond the node, which the test plays: both do at once what they are to, reads only when the test says so,
// and writes, where it holds them, are there at once and end when it says so.
class ThreeTiers {
 public:
  explicit ThreeTiers(const CoreFixture::Options& options = ThreeTiersOptions())
      : f(options), worker(f.Worker("engine", space)) {
    Do(DiskWritable{true});
    Do(DiskTold{});
    Do(RemoteReachable{true});
  }

  template <class Event>
  void Do(const Event& event) {
    Carry(f.Do(event));
  }
  // Until the core has nothing left to do by itself.
  void Rest() {
    while (f.core->has_work()) Carry(f.PassTime(absl::ZeroDuration()));
  }
  void Keep(const std::vector<ChunkKey>& keys) {
    const Effects effects = f.Do(StoreAsked{worker, RequestTag{++tags}, GroupId{}, std::nullopt, keys});
    Carry(effects);
    for (const Effect& effect : effects) {
      if (const auto* copy = std::get_if<CopyStarted>(&effect)) Do(CopyFinished{copy->op, absl::OkStatus()});
    }
    Rest();
  }
  void Flush() {
    Do(FlushAsked{std::nullopt, RequestTag{++tags}});
    Rest();
  }
  void EndReads(const absl::Status& how = absl::OkStatus()) {
    while (!reads.empty()) {
      const ReadStarted read = reads.front();
      reads.pop_front();
      Do(ReadFinished{read.chunk, how});
    }
    Rest();
  }
  void EndWrites() {
    while (!writes.empty()) {
      const WriteFinished finished = writes.front();
      writes.pop_front();
      Do(finished);
    }
    Rest();
  }
  Job Clear(Tier tier, const std::vector<ChunkKey>& keys, bool of_space) {
    const JobId job{++jobs};
    Do(TierClearAsked{.job = job,
                      .tier = tier,
                      .space = SpaceId{0},
                      .keys = of_space ? std::span<const ChunkKey>() : std::span<const ChunkKey>(keys)});
    Rest();
    return *f.core->jobs().Find(job);
  }
  Job Move(Tier from, Tier to, const std::vector<ChunkKey>& keys, bool keep_source = false) {
    const JobId job{++jobs};
    Do(MoveAsked{.job = job, .space = SpaceId{0}, .keys = keys, .from = from, .to = to, .keep_source = keep_source});
    Rest();
    while (!reads.empty()) EndReads();
    return *f.core->jobs().Find(job);
  }
  // The store has them no longer, and the core knows.
  void ForgetStore(const std::vector<ChunkKey>& keys) { Clear(Tier::kRemote, keys, /*of_space=*/false); }
  // Their places on disk are wanted back.
  void Reclaim(const std::vector<ChunkKey>& keys) {
    PlacesWanted wanted;
    for (const ChunkKey& key : keys) wanted.records.push_back({SpaceId{0}, GroupId{}, key, places.at(key)});
    Do(wanted);
    while (!reads.empty()) EndReads();
  }
  // The daemon is killed and comes back over a new pool: it is told of the disk's rows, of the uses and of the pins that were noted, each of which
  // lasts as long as it should. `early`: what happens before it is told of the pins.
  void Restart(
      const CoreFixture::Options& options, const std::function<void()>& early = [] {}, bool rows_left = false) {
    f.Restart(options);
    reads.clear();
    writes.clear();
    Do(Tick{f.now});
    worker = f.Worker("engine", space);
    Do(SpaceFound{space});
    std::vector<ChunksFound::Found> found;
    for (const ChunkKey& key : rows) found.push_back(catalog.at(key));
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.position < b.position; });
    Do(ChunksFound{SpaceId{0}, std::move(found)});
    const auto before = noted;  // the disk was asked before anything happened
    const auto lasted = ends;
    early();
    for (const auto& [name, note] : before) {
      PinNote of = note;
      of.lasts = lasted.at(name) - f.now;
      Do(PinFound{SpaceId{0}, std::move(of), rows_left});
    }
    for (const DiskUses& of : UsesFoundNext()) Do(UsesFound{of});
    Do(DiskTold{});
    Do(DiskWritable{true});
    Do(RemoteReachable{true});
    Rest();
  }
  // The periods of what was noted as the next daemon counts them: from the one that ran last.
  std::vector<DiskUses> UsesFoundNext() {
    int32_t last = 0;
    for (const DiskUses& of : uses) last = std::max(last, of.period);
    for (DiskUses& of : uses) of.period -= last;
    return uses;
  }
  // What a lookup finds here, without the store's word.
  uint32_t Hits(const std::vector<ChunkKey>& keys) { return f.Lookup(worker, keys).chunks; }

  const SpaceSpec space = SpaceNamed("model", {KiB(4)});
  CoreFixture f;
  SessionId worker;
  std::set<ChunkKey> rows, store;                  // of the disk; of the store
  std::map<ChunkKey, DiskPlace> places;            // of what was written there last
  std::set<ChunkKey> left;                         // of the rows: those of which the core doesn't know any more
  std::map<ChunkKey, ChunksFound::Found> catalog;  // what the rows say, and said
  std::map<PinName, PinNote> noted;                // the pins that a restart finds
  std::map<PinName, absl::Time> ends;              // when
  std::vector<DiskUses> uses;                      // likewise, in the order in which they were noted
  std::vector<PinLost> pins_lost;
  std::set<ChunkKey> incompressible;           // on disk
  std::map<ChunkKey, uint8_t> methods_beyond;  // how what was written to the store was said to be encoded on disk
  bool store_answers = true, store_forgets = true;
  bool hold_writes = false;
  absl::Status keeps;              // whether the disk makes clears durable
  uint64_t asks = 0, in_vain = 0;  // how often the store was asked; so often something of the space is forgotten meanwhile
  std::deque<WriteFinished> writes;
  std::deque<ReadStarted> reads;
  std::vector<JobId> recodings;  // that were begun or stopped, in that order
  uint64_t tags = 1000, jobs = 0;

 private:
  void Carry(Effects effects) {
    for (Effect& effect : effects) std::visit([this](auto& e) { Carry(e); }, effect);
  }
  void Carry(WriteStarted& write) {
    (write.to == Tier::kSsd ? rows : store).insert(write.key);
    if (write.to == Tier::kRemote) methods_beyond[write.key] = write.method;
    WriteFinished finished{write.chunk, absl::OkStatus(), {}, write.to};
    if (write.to == Tier::kSsd && write.may_stay && incompressible.contains(write.key)) {
      finished.status = absl::AlreadyExistsError("no smaller");
    } else if (write.to == Tier::kSsd) {
      finished.places.push_back({1, ++units_});
      if (write.method != 0) finished.form = {write.method, KiB(3)};
      if (write.method != 0) finished.loss = {0.25, 0.5};
      places[write.key] = finished.places[0];
      catalog[write.key] = {write.group,     write.key,  write.parent, write.position,
                            finished.places, write.hint, finished.form};
    }
    if (hold_writes) {
      writes.push_back(finished);
    } else {
      Do(finished);
    }
  }
  void Carry(RecodeStarted& recode) { recodings.push_back(recode.job); }
  void Carry(RecodeStopped& stopped) { recodings.push_back(stopped.job); }
  void Carry(ReadStarted& read) { reads.push_back(std::move(read)); }
  void Carry(ChunksHidden& hidden) {
    for (const ChunksHidden::Chunk& chunk : hidden.chunks) rows.erase(chunk.key);
    for (const ChunkKey& key : std::exchange(left, {})) rows.erase(key);
    Do(ClearKept{hidden.job, Tier::kSsd, keeps});
  }
  void Carry(PinsNoted& of) {
    for (PinNote& note : of.notes) {
      ends[note.pin] = f.now + note.lasts;
      if (note.count == 0) {
        noted.erase(note.pin);
      } else {
        noted[note.pin] = std::move(note);
      }
    }
  }
  void Carry(UsesNoted& of) { uses.push_back(std::move(of.noted)); }
  void Carry(PinLost& lost) { pins_lost.push_back(std::move(lost)); }
  void Carry(PlacesFreed& freed) {
    for (const PlacesFreed::Chunk& chunk : freed.chunks) {
      if (chunk.row_stays) left.insert(chunk.key);
      if (!chunk.replaced && !chunk.row_stays) rows.erase(chunk.key);
    }
  }
  void Carry(SpaceCleared& cleared) {
    store.clear();
    Do(ClearKept{cleared.job, Tier::kRemote});
    if (cleared.tier == Tier::kRemote) return;
    rows.clear();
    Do(ClearKept{cleared.job, Tier::kSsd, keeps});
  }
  void Carry(RemoteAsked& asked) {
    if (!store_answers) return Do(RemoteFound{asked.ask, absl::UnavailableError("it is away")});
    ++asks;
    if (asks <= in_vain) {  // another forgets something of the space meanwhile
      Do(RemoteForgot{JobId{1000}, asked.space, {}});
    }
    RemoteFound found{asked.ask, absl::OkStatus()};
    for (const ChunkKey& key : asked.keys) found.there.push_back(store.contains(key));
    Do(found);
  }
  void Carry(RemoteForgotten& forgotten) {
    if (!store_forgets)
      return Do(RemoteForgot{forgotten.job, forgotten.space, forgotten.keys, absl::UnavailableError("it is away")});
    for (const ChunkKey& key : forgotten.keys) store.erase(key);
    Do(RemoteForgot{forgotten.job, forgotten.space, forgotten.keys});
  }
  template <class Other>
  void Carry(Other&) {}

  uint32_t units_ = 0;
};

}  // namespace kvist::core

#endif  // KVIST_TESTS_UNIT_CORE_THREE_TIERS_H_
