// What one event of the core may cost at most, in Core::work(), whatever a client does: the proof of "every event does bounded work".

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

constexpr uint32_t kGroups = Spaces::kGroupsMax;

// A core over a large pool of 4 KiB slots. Invariants are checked when a test asks for it: they cost as much as everything there is.
class Hostile {
 public:
  explicit Hostile(CoreOptions options = {}, uint32_t slots = 350'000)
      : options_(options), f({.core = options, .slab_bytes = KiB(4096), .slabs = (slots + 1023) / 1024}) {}

  template <class Event>
  Effects Do(const Event& event) {
    Effects effects;
    const uint64_t before = f.core->work();
    f.core->Handle(event, &effects);
    f.watched = false;  // too many chunks to compare after each
    last = f.core->work() - before;
    // A slice, and what ends whole: one lease, allocation or load.
    const bool tick = std::is_same_v<Event, Tick>;
    const uint64_t bound = tick ? options_.slice_work + 2 * Core::kKeysMax + 512 : options_.EventWorkBound();
    if (last > bound) FAIL_CHECK("an event cost " << last << ", and the bound is " << bound);
    return effects;
  }
  OpEnded Finish(OpId op, absl::Status status = absl::OkStatus()) {
    return std::get<OpEnded>(Do(CopyFinished{op, std::move(status)}).at(0));
  }
  std::optional<CopyStarted> Store(SessionId session, std::span<const ChunkKey> keys, std::optional<ChunkKey> parent = {},
                                   GroupId group = {}) {
    const Effects effects = Do(StoreAsked{session, RequestTag{1}, group, parent, keys});
    if (const auto* started = std::get_if<CopyStarted>(&effects.at(0))) return *started;
    ended = std::get<OpEnded>(effects[0]);
    return {};
  }
  // Stores and seals all of them, on one rank.
  void Keep(SessionId session, std::span<const ChunkKey> keys, std::optional<ChunkKey> parent = {}, GroupId group = {}) {
    const auto copy = Store(session, keys, parent, group);
    REQUIRE(copy.has_value());
    REQUIRE(copy->slots.size() == keys.size());
    REQUIRE(Finish(copy->op).copied == keys.size());
  }
  // Ticks until there is nothing left to do; what they cost together.
  uint64_t Settle() {
    const uint64_t before = f.core->work();
    uint64_t ticks = 0;
    while (f.core->has_work()) {
      REQUIRE(++ticks < 10'000'000);
      Do(Tick{f.now});
    }
    return f.core->work() - before;
  }
  uint64_t bound() const { return options_.EventWorkBound(); }

 private:
  const CoreOptions options_;

 public:
  CoreFixture f;
  uint64_t last = 0;  // event's work
  OpEnded ended;      // the last store's that started no copy
};

SpaceSpec Groups(const std::vector<ReuseRule>& rules, uint32_t ranks = 1) {
  SpaceSpec spec = SpaceNamed("hostile", std::vector<Bytes>(ranks, KiB(4)));
  const GroupSpec group = spec.groups[0];
  spec.groups.clear();
  for (const ReuseRule& rule : rules) spec.groups.emplace_back(group).reuse = rule;
  return spec;
}

std::vector<ChunkKey> Chain(uint64_t first, uint32_t length = Core::kKeysMax) {
  std::vector<ChunkKey> keys;
  for (uint32_t k = 0; k < length; ++k) keys.push_back(KeyOf(first + k));
  return keys;
}

TEST_CASE("The largest lookups, leases, pins and hints of a space of many full groups are bounded") {
  CoreOptions options;
  options.lease_share = options.pin_share = 1;
  Hostile h(options);
  const SessionId session = h.f.Worker("engine", Groups(std::vector<ReuseRule>(kGroups)));
  const std::vector<ChunkKey> keys = Chain(0);
  for (uint16_t g = 0; g < kGroups; ++g) h.Keep(session, keys, {}, GroupId{g});

  const auto hit = std::get<LookupAnswered>(h.Do(LookupAsked{session, RequestTag{1}, keys, absl::Seconds(9)}).at(0));
  CHECK(hit.chunks ==
        UsablePosition::Reach(Groups(std::vector<ReuseRule>(kGroups)).groups, Core::kKeysMax, options.event_work));
  CHECK(h.last > options.event_work / 2);  // or it wasn't the largest
  REQUIRE(hit.lease);
  h.Do(ReleaseAsked{session, hit.lease});
  CHECK(std::get<Answered>(h.Do(PinAsked{session, RequestTag{1}, keys}).at(0)).chunks == hit.chunks);
  h.Do(ClearAsked{JobId{1}});

  CHECK_FALSE(uint64_t{Core::kKeysMax} * kGroups <= h.bound());  // so a hint can't be said at once
  std::span<const ChunkKey> left = keys;
  const uint64_t before = h.f.core->work();
  while (!left.empty()) {
    const size_t count = std::min<size_t>(left.size(), h.f.core->HintKeysMax(session));
    h.Do(HintAsked{session, left.first(count), {.session_ended = true}});
    left = left.subspan(count);
  }
  CHECK(h.f.core->work() - before >= uint64_t{Core::kKeysMax} * kGroups);
  CHECK(h.Settle() > h.bound());
  h.f.core->CheckInvariants();
  CHECK(h.f.core->status().chunks == 0);
}

TEST_CASE("A search that hostile groups lead back one chunk at a time is bounded") {
  Hostile h;
  std::vector<ReuseRule> rules;
  uint32_t least = 16384 / 4 * 3;  // that it must cost, or it isn't hostile
  SECTION("states, of which no two lie together") {
    rules.assign(kGroups, {GroupKind::kState});
    least = Core::kKeysMax;  // together they go over the prompt once
  }
  SECTION("wide windows, each with holes") {
    for (uint32_t g = 0; g < kGroups; ++g) rules.push_back({GroupKind::kWindow, 8 + g});
  }
  SECTION("windows as long as the prompt, and a state") {
    rules.assign(3, {GroupKind::kWindow, Core::kKeysMax});
    rules.push_back({GroupKind::kState});
    least = 0;  // nor is it: it can't be looked for in more than a part of the prompt
  }
  const SessionId session = h.f.Worker("engine", Groups(rules));
  const std::vector<ChunkKey> keys = Chain(0);
  const auto groups = static_cast<uint16_t>(rules.size());
  for (uint16_t g = 0; g < groups; ++g) {
    std::vector<ChunkKey> some;
    for (uint32_t k = 0; k < keys.size(); ++k) {
      if (rules[g].kind == GroupKind::kState ? k % groups == g : k % (64 + g) != g) some.push_back(keys[k]);
    }
    h.Keep(session, some, {}, GroupId{g});
  }
  h.Do(LookupAsked{session, RequestTag{1}, keys, absl::ZeroDuration()});
  CHECK(h.last >= least);
  h.Do(PinAsked{session, RequestTag{1}, keys});
  CHECK(h.last >= least);
}

TEST_CASE("What a session with the most and largest leases and allocations held is reclaimed in slices") {
  CoreOptions options;
  options.lease_share = options.private_share = 1;
  Hostile h(options);
  constexpr uint32_t kWindow = 64;
  const SessionId session = h.f.Worker("engine", Groups({{GroupKind::kWindow, kWindow}}));
  const std::vector<ChunkKey> keys = Chain(0, kWindow);
  h.Keep(session, keys);
  for (size_t i = 0; i < Leases::kLeasesPerSession; ++i) {
    REQUIRE(std::get<LookupAnswered>(h.Do(LookupAsked{session, RequestTag{1}, keys, absl::Seconds(9)}).at(0)).lease);
  }
  const auto allocate = [&](uint32_t chunks) {
    return std::get<Answered>(h.Do(AllocateAsked{session, RequestTag{1}, GroupId{0}, chunks}).at(0)).status;
  };
  REQUIRE(allocate(Core::kKeysMax).ok());
  for (size_t i = 1; i < kAllocationsPerSession; ++i) REQUIRE(allocate(32).ok());
  REQUIRE_FALSE(allocate(1).ok());
  CHECK(h.f.slots->live_slots() > 4 * h.bound());

  h.Do(SessionClosed{session});
  CHECK(h.last < 100);
  CHECK(h.f.core->has_work());
  const uint64_t work = h.Settle();
  CHECK(work > 16 * h.bound());
  // Within a second, at up to 100 ns each: fault row 1.
  CHECK(work < 10'000'000);
  CHECK(h.f.core->status().leases == 0);
  CHECK(h.f.core->status().allocations == 0);
  CHECK(h.f.slots->live_slots() == kWindow);
  h.f.core->CheckInvariants();
}

TEST_CASE("Leases that all expire at once are ended in slices") {
  CoreOptions options;
  options.lease_share = 1;
  Hostile h(options);
  constexpr uint32_t kWindow = 64;
  const SessionId session = h.f.Worker("engine", Groups({{GroupKind::kWindow, kWindow}}));
  const std::vector<ChunkKey> keys = Chain(0, kWindow);
  h.Keep(session, keys);
  for (size_t i = 0; i < Leases::kLeasesPerSession; ++i) h.Do(LookupAsked{session, RequestTag{1}, keys, absl::Seconds(9)});
  REQUIRE(h.f.core->status().leases == Leases::kLeasesPerSession);
  h.f.now += absl::Seconds(10);
  h.Do(Tick{h.f.now});
  CHECK(h.f.core->has_work());
  CHECK(h.Settle() > 4 * h.bound());
  CHECK(h.f.core->status().leases == 0);
}

TEST_CASE("Half stores of a dead rank, or that all are late, are reaped in slices") {
  Hostile h;
  const SpaceSpec space = Groups({{GroupKind::kFull}}, 2);
  const SessionId zero = h.f.Worker("engine", space, 0);
  h.f.Worker("engine", space, 1);
  std::optional<ChunkKey> parent;
  for (uint64_t part = 0; part < 40; ++part) {  // one chain of 163,840
    const std::vector<ChunkKey> keys = Chain(part * Core::kKeysMax);
    h.Keep(zero, keys, parent);
    parent = keys.back();
  }
  REQUIRE(h.f.core->status().filling > 4 * h.bound());
  SECTION("dead") { h.Do(SessionClosed{zero}); }
  SECTION("late") {
    h.f.now += absl::Hours(1);
    h.Do(Tick{h.f.now});
  }
  SECTION("cleared") { h.Do(ClearAsked{JobId{1}}); }
  CHECK(h.f.core->has_work());
  CHECK(h.Settle() > 4 * h.bound());
  CHECK(h.f.slots->live_slots() == 0);
  CHECK(h.f.core->status().chunks == 0);
  h.f.core->CheckInvariants();
}

TEST_CASE("The clear of a long chain that is leased and pinned is done in slices") {
  CoreOptions options;
  options.lease_share = options.pin_share = 1;
  Hostile h(options);
  const SessionId session = h.f.Worker("engine", Groups({{GroupKind::kFull}}));
  std::optional<ChunkKey> parent;
  std::vector<ChunkKey> keys;
  for (uint64_t part = 0; part < 60; ++part) {  // one chain of 245,760
    const std::vector<ChunkKey> more = Chain(part * Core::kKeysMax);
    h.Keep(session, more, parent);
    parent = more.back();
    if (part == 0) keys = more;
  }
  const auto hit = std::get<LookupAnswered>(h.Do(LookupAsked{session, RequestTag{1}, keys, absl::Seconds(9)}).at(0));
  CHECK(hit.chunks == Core::kKeysMax);  // a space like most: all of a request is looked at
  h.Do(PinAsked{session, RequestTag{1}, keys});
  h.Do(ClearAsked{JobId{1}});
  CHECK(h.last < 100);
  CHECK(h.Settle() > 16 * h.bound());
  CHECK(h.f.slots->live_slots() == Core::kKeysMax);  // what the lease keeps
  h.Do(ReleaseAsked{session, hit.lease});
  h.Settle();
  CHECK(h.f.slots->live_slots() == 0);
  h.f.core->CheckInvariants();
}

TEST_CASE("Chunks of failed stores that others hang on are bounded, and so is collecting them") {
  CoreOptions options;
  options.ghosts_max = 20'000;
  Hostile h(options, 50'000);
  const SpaceSpec space = Groups({{GroupKind::kFull}});
  const SessionId session = h.f.Worker("engine", space), other = h.f.Worker("engine", space);
  std::optional<ChunkKey> parent;
  std::vector<OpId> running;
  uint64_t refused_at = 0;
  for (uint64_t part = 0; part < 30 && refused_at == 0; ++part) {
    // A long store, one chunk that hangs on its end, and the long one fails.
    const std::vector<ChunkKey> keys = Chain(part * 10'000), last{KeyOf(part * 10'000 + 9'999)};
    const auto copy = h.Store(session, keys, parent);
    if (!copy) {
      refused_at = part;
      CHECK(h.ended.status.code() == absl::StatusCode::kResourceExhausted);
      CHECK(h.ended.status.message().find("20000") != absl::string_view::npos);
      CHECK(h.ended.refused == keys.size());
      break;
    }
    const auto leaf = h.Store(other, last, keys.back());
    REQUIRE(leaf.has_value());
    running.push_back(leaf->op);
    parent = last[0];
    h.Finish(copy->op, absl::CancelledError("given up"));
    h.Settle();
  }
  CHECK(refused_at == 5);  // 5 x 4,096 is past the bound, 4 x isn't
  CHECK(h.f.core->status().chunks == refused_at * (Core::kKeysMax + 1));
  CHECK(h.f.slots->live_slots() == refused_at);
  h.f.core->CheckInvariants();

  // What is a ghost already may be stored again.
  const std::vector<ChunkKey> again = Chain(0);
  const auto copy = h.Store(session, again);
  REQUIRE(copy.has_value());
  CHECK(copy->slots.size() == again.size());
  h.Finish(copy->op, absl::CancelledError("given up"));

  SECTION("the stores below fail, too: all go") {
    for (const OpId op : running) h.Finish(op, absl::CancelledError("given up"));
    CHECK(h.f.core->has_work());
    h.Settle();
    CHECK(h.f.core->status().chunks == 0);
  }
  SECTION("the stores below are sealed, and never found: they are evicted for a store that is refused") {
    for (const OpId op : running) CHECK(h.Finish(op).copied == 1);
    h.Settle();
    CHECK(h.f.core->status().chunks == refused_at * (Core::kKeysMax + 1));
    const std::vector<ChunkKey> fresh = Chain(1'000'000, 8);
    uint32_t attempts = 0;
    for (; attempts < 10 && !h.Store(session, fresh); ++attempts) h.Settle();
    CHECK(attempts > 0);
    CHECK(attempts < 10);
  }
  h.f.core->CheckInvariants();
}

TEST_CASE("Stores, loads and allocations of many ranks are bounded, and their failures") {
  Hostile h;
  constexpr uint16_t kRanks = Spaces::kRanksMax;
  const SpaceSpec space = Groups({{GroupKind::kWindow, 512}}, kRanks);
  const SessionId zero = h.f.Worker("engine", space, 0), one = h.f.Worker("engine", space, 1);
  const std::vector<ChunkKey> keys = Chain(0);
  // What is too much at once is refused, and stored when it is asked for again.
  std::vector<OpId> ops;
  for (uint32_t at = 0; at < keys.size();) {
    const auto copy = h.Store(zero, std::span(keys).subspan(at));
    REQUIRE(copy.has_value());
    CHECK(copy->slots.size() >= std::min<size_t>(keys.size() - at, 200));
    CHECK(copy->slots.size() < 300);
    at += static_cast<uint32_t>(copy->slots.size());
    ops.push_back(copy->op);
  }
  REQUIRE(h.f.slots->live_slots() == uint64_t{Core::kKeysMax} * kRanks);
  const auto all = h.Store(one, keys);
  REQUIRE(all.has_value());
  REQUIRE(all->slots.size() == keys.size());
  for (const OpId op : ops) h.Finish(op, absl::CancelledError("given up"));
  CHECK(h.f.slots->live_slots() == uint64_t{Core::kKeysMax} * kRanks);
  SECTION("the last copy fails") { h.Finish(all->op, absl::CancelledError("given up")); }
  SECTION("the last copy ends well, in vain") { CHECK(h.Finish(all->op).copied == 0); }
  CHECK(h.f.core->has_work());
  h.f.core->CheckInvariants();
  CHECK(h.Settle() > 4 * h.bound());
  CHECK(h.f.slots->live_slots() == 0);

  const auto refused = std::get<Answered>(h.Do(AllocateAsked{zero, RequestTag{1}, GroupId{0}, Core::kKeysMax}).at(0));
  CHECK(refused.status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(refused.status.message().find("252 chunks at a time") != absl::string_view::npos);
  const auto given = std::get<Answered>(h.Do(AllocateAsked{zero, RequestTag{1}, GroupId{0}, 252}).at(0));
  REQUIRE(given.status.ok());
  h.Do(FreeAsked{zero, given.allocation});
  h.Settle();
  CHECK(h.f.slots->live_slots() == 0);
  h.f.core->CheckInvariants();
}

TEST_CASE("Letting go of the most cleared chunks of many ranks is bounded") {
  CoreOptions options;
  options.lease_share = 1;
  Hostile h(options);
  constexpr uint16_t kRanks = 32;
  const SpaceSpec space = Groups({{GroupKind::kWindow, Core::kKeysMax}}, kRanks);
  std::vector<SessionId> workers;
  for (uint16_t r = 0; r < kRanks; ++r) workers.push_back(h.f.Worker("engine", space, r));
  const std::vector<ChunkKey> keys = Chain(0);
  for (uint32_t at = 0; at < keys.size(); at += 256) {
    for (const SessionId worker : workers) h.Keep(worker, std::span(keys).subspan(at, 256));
  }
  const auto hit = std::get<LookupAnswered>(h.Do(LookupAsked{workers[0], RequestTag{1}, keys, absl::Seconds(9)}).at(0));
  REQUIRE(hit.chunks == keys.size());
  REQUIRE(hit.lease);
  h.Do(ClearAsked{JobId{1}});
  h.Settle();
  REQUIRE(h.f.slots->live_slots() == keys.size() * kRanks);
  h.Do(ReleaseAsked{workers[0], hit.lease});
  CHECK(h.last > Core::kKeysMax);
  CHECK(h.f.core->has_work());
  CHECK(h.Settle() > h.bound());
  CHECK(h.f.slots->live_slots() == 0);
  h.f.core->CheckInvariants();
}

TEST_CASE("A tenant can't use up the sizes of slots that others need") {
  CoreFixture f({.core = {}, .slab_bytes = GiB(1), .slabs = 1});
  uint64_t sessions = 0, pages = 0;
  absl::Status why;
  while (why.ok()) {
    REQUIRE(sessions < Spaces::kSpacesMax);
    SpaceSpec space = Groups(std::vector<ReuseRule>(kGroups));
    space.tenant = "first";
    space.digest.bytes.fill(0);
    std::memcpy(space.digest.bytes.data(), &++sessions, sizeof sessions);
    for (GroupSpec& group : space.groups) group.slot_bytes = {KiB(4) * ++pages};
    Effects effects;
    f.core->Handle(SessionOpened{SessionId{sessions}, "engine", Role::kScheduler, Rank{0}, space}, &effects);
    if (const auto* refused = std::get_if<SessionRefused>(&effects.at(0))) why = refused->why;
    f.core->Handle(SessionClosed{SessionId{sessions}}, &effects);
  }
  CHECK(why.code() == absl::StatusCode::kResourceExhausted);
  CHECK(why.message().find("tenant first has come with 32767 sizes of slots") != absl::string_view::npos);
  f.Worker("engine", SpaceNamed("model", {KiB(4) * (pages + 1)}, "second"));
}

TEST_CASE("A tenant can't use up the spaces that others need") {
  Hostile h({}, 1024);
  uint64_t sessions = 0;
  // How many spaces this tenant comes with before it is refused, and why that is.
  absl::Status why;
  const auto flood = [&](std::string_view tenant) {
    for (uint32_t opened = 0;; ++opened) {
      REQUIRE(opened <= Spaces::kSpacesMax);
      const SessionId session{++sessions};
      const SpaceSpec space = SpaceNamed(std::to_string(opened), {KiB(4)}, tenant);
      const Effects effects = h.Do(SessionOpened{session, std::to_string(opened), Role::kScheduler, Rank{0}, space});
      if (const auto* refused = std::get_if<SessionRefused>(&effects.at(0))) {
        why = refused->why;
        return opened;
      }
      h.Do(SessionClosed{session});
    }
  };
  CHECK(flood("first") == Spaces::kSpacesMax / 2);
  CHECK(why.code() == absl::StatusCode::kResourceExhausted);
  CHECK(why.message().find("tenant first has come with 2048 spaces") != absl::string_view::npos);
  CHECK(flood("second") == Spaces::kSpacesMax / 4);
  h.f.Worker("engine", SpaceNamed("model", {KiB(4)}, "third"));
  // What is known is served.
  const SpaceSpec known = SpaceNamed("7", {KiB(4)}, "first");
  CHECK(h.f.Open(++sessions, "engine", Role::kScheduler, 0, known).ok());
}

TEST_CASE("Loads that wait for slots when their session ends are ended in slices") {
  CoreOptions options;
  options.lease_share = options.private_share = 1;
  options.disk = CoreOptions::Disk{.reserve = Bytes{}};
  Hostile h(options, Core::kKeysMax);
  const SpaceSpec space = Groups({{GroupKind::kFull}});
  const SessionId session = h.f.Worker("engine", space), other = h.f.Worker("other", space);
  // All slots are taken, and all chunks on disk.
  const auto taken = std::get<Answered>(h.Do(AllocateAsked{other, RequestTag{1}, GroupId{0}, Core::kKeysMax}).at(0));
  REQUIRE(taken.status.ok());
  const std::vector<ChunkKey> keys = Chain(0);
  for (uint32_t at = 0; at < keys.size();) {
    ChunksFound found{SpaceId{0}, {}};
    for (; found.chunks.size() < Core::kPlacesMax; ++at) {
      const std::optional<ChunkKey> parent = at == 0 ? std::nullopt : std::optional(keys[at - 1]);
      found.chunks.push_back({GroupId{0}, keys[at], parent, at, {{1, at + 1}}});
    }
    h.Do(found);
    DiskUses uses;
    for (const ChunksFound::Found& of : found.chunks) uses.uses.push_back({SpaceId{0}, of.group, of.key});
    h.Do(UsesFound{uses});
    CHECK(h.last <= Core::kPlacesMax);
  }
  const auto hit = std::get<LookupAnswered>(h.Do(LookupAsked{session, RequestTag{1}, keys, absl::Seconds(9)}).at(0));
  REQUIRE(hit.lease);
  REQUIRE(hit.coming == keys.size());
  constexpr uint32_t kLoads = 64;  // of the Sessions::kOpsPerSession that it may have
  for (uint32_t i = 0; i < kLoads; ++i) {
    const Effects effects = h.Do(LoadAsked{session, RequestTag{i}, hit.lease, GroupId{0}, 0, Core::kKeysMax});
    REQUIRE(std::holds_alternative<CopyWaits>(effects.at(0)));
  }

  CHECK(h.Do(SessionClosed{session}).empty());
  CHECK(h.last < 100);
  CHECK(h.f.core->has_work());
  h.f.core->CheckInvariants();
  uint32_t reads = 0;
  SECTION("with nothing else to do") {}
  SECTION("while slots become free, and nothing is copied for it any more") {
    std::vector<Effect> effects = h.Do(FreeAsked{other, taken.allocation});
    while (h.f.core->has_work()) {
      for (const Effect& effect : effects) {
        CHECK_FALSE(std::holds_alternative<CopyStarted>(effect));
        const auto* read = std::get_if<ReadStarted>(&effect);
        if (read == nullptr) continue;
        ++reads;
        h.Do(ReadFinished{read->chunk, absl::OkStatus()});
      }
      effects = h.Do(Tick{h.f.now});
    }
    CHECK(reads > 0);
  }
  const uint64_t work = h.Settle();
  if (reads == 0) CHECK(work > uint64_t{kLoads} * Core::kKeysMax);
  CHECK(h.f.core->status().ops == 0);
  CHECK(h.f.core->status().sessions == 1);
  h.f.core->CheckInvariants();
}

TEST_CASE("Making room for large slots among small ones is bounded, and succeeds at last") {
  Hostile h({}, 40'960);
  const SessionId small = h.f.Worker("small", Groups({{GroupKind::kWindow, 8}}));
  for (uint64_t part = 0; part < 10; ++part) h.Keep(small, Chain(part * Core::kKeysMax));
  SpaceSpec space = SpaceNamed("large", std::vector<Bytes>(Spaces::kRanksMax, KiB(512)));
  const SessionId large = h.f.Worker("large", space);
  uint32_t attempts = 0;
  for (; attempts < 100 && !h.Store(large, Chain(1'000'000, 64)); ++attempts) h.Settle();
  CHECK(attempts < 100);
  CHECK(h.f.core->status().evictions >= 8192);
  h.f.core->CheckInvariants();
}

}  // namespace
}  // namespace kvist::core
