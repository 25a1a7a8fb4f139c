#include "daemon/core/pins.h"

#include <catch2/catch.hpp>

#include "tests/unit/core/core_fixture.h"
#include "tests/unit/core/three_tiers.h"

namespace kvist::core {
namespace {

Answered Pin(CoreFixture& f, SessionId session, const std::vector<ChunkKey>& keys) {
  const Effects effects = f.Do(PinAsked{session, RequestTag{f.next_tag++}, keys});
  REQUIRE(effects.size() == 1);
  return std::get<Answered>(effects[0]);
}

void Unpin(CoreFixture& f, SessionId session, const std::vector<ChunkKey>& keys) {
  const Effects effects = f.Do(UnpinAsked{session, RequestTag{f.next_tag++}, keys});
  REQUIRE(effects.size() == 1);
  CHECK(std::get<Answered>(effects[0]).status.ok());
}

const SpaceSpec kSpace = SpaceNamed("space", {KiB(4)});

TEST_CASE("A pin keeps its prefix through a flood, outlives its session, and ends with its last unpin") {
  CoreFixture f;  // 16 slots
  const SessionId first = f.Worker("engine", kSpace);
  REQUIRE(f.Keep(first, KeysOf({1, 2, 3})) == 3);
  CHECK(Pin(f, first, KeysOf({1, 2, 3})).chunks == 3);
  CHECK(Pin(f, first, KeysOf({1, 2, 3})).chunks == 3);
  REQUIRE(f.core->pins().size() == 1);
  CHECK(f.core->pins()[0].name.owner == "engine");
  CHECK(f.core->pins()[0].count == 2);
  CHECK(f.core->pins()[0].bytes == KiB(12));
  f.Do(SessionClosed{first});

  const SessionId again = f.Worker("engine", kSpace);
  for (uint64_t n = 100; n < 150; ++n) REQUIRE(f.Keep(again, {KeyOf(n)}) == 1);
  CHECK(f.Lookup(again, KeysOf({1, 2, 3})).chunks == 3);
  Unpin(f, again, KeysOf({1, 2, 3}));
  for (uint64_t n = 200; n < 250; ++n) REQUIRE(f.Keep(again, {KeyOf(n)}) == 1);
  CHECK(f.Lookup(again, KeysOf({1, 2, 3})).chunks == 3);  // one of two
  Unpin(f, again, KeysOf({1, 2, 3}));
  CHECK(f.core->pins().empty());
  for (uint64_t n = 300; n < 350; ++n) REQUIRE(f.Keep(again, {KeyOf(n)}) == 1);
  CHECK(f.Lookup(again, KeysOf({1, 2, 3})).chunks == 0);
  Unpin(f, again, KeysOf({1, 2, 3}));  // unknown: ignored
}

TEST_CASE("A pin takes what is there, and more of it when it is pinned again") {
  CoreFixture f;
  const SessionId session = f.Worker("engine", kSpace);
  CHECK(Pin(f, session, KeysOf({1, 2, 3})).chunks == 0);
  CHECK(f.core->pins().empty());
  CHECK(Pin(f, session, {}).chunks == 0);
  REQUIRE(f.Keep(session, KeysOf({1})) == 1);
  CHECK(Pin(f, session, KeysOf({1, 2, 3})).chunks == 1);
  REQUIRE(f.Keep(session, KeysOf({2, 3}), KeyOf(1)) == 2);
  CHECK(Pin(f, session, KeysOf({1, 2, 3})).chunks == 3);
  REQUIRE(f.core->pins().size() == 1);
  CHECK(f.core->pins()[0].count == 2);
  CHECK(f.core->pins()[0].chunks == 3);
  CHECK(f.core->pins()[0].name.asked == 3);
}

TEST_CASE("Pinning again counts when nothing can be found just then, so that its unpin ends nobody else's") {
  CoreFixture f;
  const SessionId session = f.Worker("engine", kSpace);
  REQUIRE(f.Keep(session, KeysOf({1})) == 1);
  REQUIRE(Pin(f, session, KeysOf({1})).chunks == 1);
  const LookupAnswered hit = f.Lookup(session, KeysOf({1}), absl::Seconds(10));
  const auto load = f.Load(session, hit.lease, 0, 1);
  REQUIRE(load.has_value());
  CopyFinished corrupt{load->op, absl::DataLossError("a checksum doesn't match")};
  corrupt.corrupt = {0};
  f.Do(corrupt);
  CHECK(Pin(f, session, KeysOf({1})).chunks == 0);
  REQUIRE(f.core->pins().size() == 1);
  CHECK(f.core->pins()[0].count == 2);
  Unpin(f, session, KeysOf({1}));
  CHECK(f.core->pins().size() == 1);
  Unpin(f, session, KeysOf({1}));
  CHECK(f.core->pins().empty());
}

TEST_CASE("Pins of a tenant keep at most their share of its quota") {
  CoreFixture::Options options;
  options.core.pin_share = 0.25;  // 4 of 16 slots
  CoreFixture f(options);
  const SessionId session = f.Worker("engine", kSpace), other = f.Worker("other", kSpace);
  REQUIRE(f.Keep(session, KeysOf({1, 2, 3})) == 3);
  REQUIRE(f.Keep(session, KeysOf({11, 12})) == 2);
  CHECK(Pin(f, session, KeysOf({1, 2, 3})).status.ok());
  const Answered refused = Pin(f, other, KeysOf({11, 12}));
  CHECK(absl::IsResourceExhausted(refused.status));
  CHECK(std::string(refused.status.message()).find("unpin others first") != std::string::npos);
  CHECK(refused.chunks == 0);
  Unpin(f, session, KeysOf({1, 2, 3}));
  CHECK(Pin(f, other, KeysOf({11, 12})).status.ok());
}

TEST_CASE("A clear ends pins: at once invisible, their slots free in slices") {
  CoreFixture::Options options;
  options.core.slice_work = 8;
  CoreFixture f(options);
  const SessionId session = f.Worker("engine", kSpace);
  for (uint64_t n = 1; n <= 6; ++n) {
    REQUIRE(f.Keep(session, {KeyOf(n)}) == 1);
    REQUIRE(Pin(f, session, {KeyOf(n)}).chunks == 1);
  }
  f.Do(ClearAsked{.job = JobId{1}});
  CHECK(f.core->pins().empty());
  CHECK(f.core->status().pins == 0);
  CHECK(f.Lookup(session, {KeyOf(1)}).chunks == 0);
  CHECK(f.slots->live_slots() == 6);
  for (int slice = 0; slice < 10 && f.core->has_work(); ++slice) f.PassTime(absl::Milliseconds(1));
  CHECK_FALSE(f.core->has_work());
  CHECK(f.slots->live_slots() == 0);
  REQUIRE(f.Keep(session, {KeyOf(1)}) == 1);
  CHECK(Pin(f, session, {KeyOf(1)}).chunks == 1);
}

TEST_CASE("Pins are listed by their numbers, a few at a time, and those that a clear has taken are not among them") {
  CoreFixture::Options options;
  options.core.slice_work = 1;
  CoreFixture f(options);
  const SessionId red = f.Worker("red", SpaceNamed("red", {KiB(4)}));
  const SessionId blue = f.Worker("blue", SpaceNamed("blue", {KiB(4)}));
  for (uint64_t n = 1; n <= 3; ++n) {  // 1, 3, 5 are red's, 2, 4, 6 blue's
    for (const SessionId session : {red, blue}) {
      REQUIRE(f.Keep(session, {KeyOf(n)}) == 1);
      REQUIRE(Pin(f, session, {KeyOf(n)}).chunks == 1);
    }
  }
  const auto numbers = [&](uint64_t after, size_t looks, uint64_t next) {
    const PinPage page = f.core->PinsAfter(after, looks);
    CHECK(page.next == next);
    std::vector<uint64_t> found;
    for (const PinRow& row : page.rows) found.push_back(row.number);
    return found;
  };
  using Numbers = std::vector<uint64_t>;
  CHECK(numbers(0, 2, 2) == Numbers{1, 2});
  CHECK(numbers(2, 2, 4) == Numbers{3, 4});
  CHECK(numbers(4, 2, 0) == Numbers{5, 6});
  CHECK(numbers(6, 2, 0) == Numbers{});
  Pin(f, blue, {KeyOf(2)});  // once more: the same pin
  Unpin(f, red, {KeyOf(3)});
  CHECK(numbers(0, 100, 0) == Numbers{1, 2, 3, 4, 6});

  f.Do(ClearAsked{{1}, f.core->pins().front().space});  // red's
  CHECK(numbers(0, 1, 1) == Numbers{});                 // looked at 1 in vain, and there is more
  CHECK(numbers(1, 100, 0) == Numbers{2, 4, 6});
  REQUIRE(f.Keep(red, {KeyOf(1)}) == 1);
  REQUIRE(Pin(f, red, {KeyOf(1)}).chunks == 1);
  CHECK(numbers(0, 100, 0) == Numbers{2, 4, 6, 7});
  for (int slice = 0; slice < 100 && f.core->has_work(); ++slice) f.PassTime(absl::Milliseconds(1));
  CHECK(numbers(0, 4, 0) == Numbers{2, 4, 6, 7});  // and nothing is looked at in vain any more
}

TEST_CASE("An operator removes a pin, however often it was pinned") {
  CoreFixture f;
  const SessionId session = f.Worker("engine", kSpace);
  REQUIRE(f.Keep(session, KeysOf({1, 2})) == 2);
  for (int i = 0; i < 3; ++i) Pin(f, session, KeysOf({1, 2}));
  f.Do(PinRemoved{SpaceId{0}, {"somebody else", KeyOf(2), 2}});
  f.Do(PinRemoved{SpaceId{7}, {"engine", KeyOf(2), 2}});
  CHECK(f.core->pins().size() == 1);
  f.Do(PinRemoved{SpaceId{0}, {"engine", KeyOf(2), 2}});
  CHECK(f.core->pins().empty());
}

PinAnswered PinByOperator(CoreFixture& f, const std::vector<ChunkKey>& keys, absl::Duration lasts,
                          const char* owner = "ops") {
  const Effects effects = f.Do(OperatorPinAsked{SpaceId{0}, RequestTag{f.next_tag++}, owner, keys, lasts});
  REQUIRE_FALSE(effects.empty());
  return std::get<PinAnswered>(effects[0]);
}

TEST_CASE("An operator's pin is one however often it is asked for, lasts as was said last, and ends by itself") {
  CoreFixture f;  // 16 slots
  const SessionId session = f.Worker("engine", kSpace);
  REQUIRE(f.Keep(session, KeysOf({1, 2})) == 2);
  CHECK(PinByOperator(f, KeysOf({7}), absl::Seconds(10)).chunks == 0);
  CHECK(f.core->pins().empty());
  CHECK(PinByOperator(f, KeysOf({1, 2, 3}), absl::Seconds(10)).chunks == 2);
  CHECK(f.core->waits_for_clock());
  REQUIRE(f.core->pins().size() == 1);
  CHECK(f.core->pins()[0].name.owner == "ops");
  CHECK(f.core->pins()[0].lasts == absl::Seconds(10));
  CHECK(PinByOperator(f, KeysOf({1, 2, 3}), absl::Seconds(20)).chunks == 2);
  CHECK(f.core->pins()[0].count == 1);
  CHECK(f.core->pins()[0].number == 1);
  CHECK(PinByOperator(f, KeysOf({1}), absl::Seconds(5), "others").chunks == 1);

  f.PassTime(absl::Seconds(6));
  CHECK(f.core->pins().size() == 1);
  for (uint64_t n = 100; n < 150; ++n) REQUIRE(f.Keep(session, {KeyOf(n)}) == 1);
  CHECK(f.Lookup(session, KeysOf({1, 2})).chunks == 2);
  f.PassTime(absl::Seconds(15));
  CHECK(f.core->pins().empty());
  CHECK_FALSE(f.core->waits_for_clock());
  for (uint64_t n = 200; n < 250; ++n) REQUIRE(f.Keep(session, {KeyOf(n)}) == 1);
  CHECK(f.Lookup(session, KeysOf({1, 2})).chunks == 0);
}

TEST_CASE("An operator's pin that is over keeps its chunks until it has been asked for again") {
  ThreeTiers t;
  t.Keep(KeysOf({1}));
  t.Flush();
  t.Clear(Tier::kDram, KeysOf({1}), /*of_space=*/false);
  REQUIRE(PinByOperator(t.f, KeysOf({1}), absl::Seconds(10)).chunks == 1);
  // What lies on the disk is lost: the chunk is in the store only, and known here because of the pin.
  t.Do(PlacesLost{{{SpaceId{0}, GroupId{0}, KeyOf(1), {1, 1}}}});
  REQUIRE(t.store == std::set<ChunkKey>{KeyOf(1)});
  REQUIRE(t.Hits(KeysOf({1})) == 1);
  t.Keep(KeysOf({2}));
  REQUIRE(t.f.Lookup(t.worker, KeysOf({2}), absl::Seconds(10)).lease);
  // A Tick of one step ends the lease that is over, and doesn't come to the pin.
  t.Do(Tick{t.f.now += absl::Seconds(20)});
  if (t.f.core->pins().empty()) return;
  CHECK(PinByOperator(t.f, KeysOf({1}), absl::Seconds(30)).chunks == 1);
  REQUIRE(t.f.core->pins().size() == 1);
  CHECK(t.f.core->pins()[0].number == 2);
  CHECK(t.f.core->pins()[0].lasts == absl::Seconds(30));
  t.Rest();
  CHECK(t.Hits(KeysOf({1})) == 1);
  t.Do(Tick{t.f.now += absl::Seconds(40)});
  t.Rest();
  CHECK(t.f.core->pins().empty());
  CHECK(t.Hits(KeysOf({1})) == 0);
}

TEST_CASE("A pin that would end by itself and is cleared, removed or unpinned before leaves nothing") {
  CoreFixture f;
  const SessionId session = f.Worker("ops", kSpace);
  REQUIRE(f.Keep(session, KeysOf({1, 2, 3})) == 3);
  PinByOperator(f, KeysOf({1}), absl::Seconds(5));
  PinByOperator(f, KeysOf({1, 2}), absl::Seconds(6));
  PinByOperator(f, KeysOf({1, 2, 3}), absl::Seconds(7));
  Unpin(f, session, KeysOf({1}));  // the engine has the owner's name, and no pin
  CHECK(f.core->pins().size() == 3);
  f.Do(PinRemoved{SpaceId{0}, {"ops", KeyOf(2), 2, true}});
  CHECK(f.core->pins().size() == 2);
  f.Do(ClearAsked{{1}, SpaceId{0}});
  CHECK(f.core->pins().empty());
  f.PassTime(absl::Seconds(30));
  for (int slice = 0; slice < 100 && f.core->has_work(); ++slice) f.PassTime(absl::Milliseconds(1));
  CHECK_FALSE(f.core->waits_for_clock());
  CHECK_FALSE(f.core->has_work());
}

TEST_CASE("An operator's pin and an engine's of the same name are two") {
  CoreFixture f;
  const SessionId session = f.Worker("ops", kSpace);
  REQUIRE(f.Keep(session, KeysOf({1, 2})) == 2);
  Pin(f, session, KeysOf({1, 2}));
  Pin(f, session, KeysOf({1, 2}));
  PinByOperator(f, KeysOf({1, 2}), absl::Seconds(5));
  REQUIRE(f.core->pins().size() == 2);
  f.PassTime(absl::Seconds(6));
  REQUIRE(f.core->pins().size() == 1);
  CHECK(f.core->pins()[0].count == 2);
  CHECK(f.core->pins()[0].lasts == absl::InfiniteDuration());
  PinByOperator(f, KeysOf({1, 2}), absl::InfiniteDuration());
  Unpin(f, session, KeysOf({1, 2}));
  Unpin(f, session, KeysOf({1, 2}));
  Unpin(f, session, KeysOf({1, 2}));
  REQUIRE(f.core->pins().size() == 1);
  CHECK(f.core->pins()[0].name.by_operator);
}

TEST_CASE("What is located was not used for that") {
  CoreFixture f;  // 16 slots
  const SessionId session = f.Worker("engine", kSpace);
  REQUIRE(f.Keep(session, KeysOf({1, 2, 3})) == 3);
  CHECK(f.core->Locate(SpaceId{0}, KeysOf({1, 2, 3, 4})).chunks == 3);
  CHECK(f.core->Locate(SpaceId{0}, KeysOf({1, 2, 3, 4})).below == 0);
  CHECK(f.core->Locate(SpaceId{0}, KeysOf({2, 3})).chunks == 0);
  CHECK(f.core->Locate(SpaceId{0}, {}).chunks == 0);
  for (uint64_t n = 100; n < 113; ++n) REQUIRE(f.Keep(session, {KeyOf(n)}) == 1);
  CHECK(f.core->Locate(SpaceId{0}, KeysOf({1, 2, 3})).chunks == 3);
  CHECK(f.core->status().lookups == 0);
  // As if nobody had asked: the oldest leaf goes first.
  REQUIRE(f.Keep(session, {KeyOf(113)}) == 1);
  CHECK(f.core->Locate(SpaceId{0}, KeysOf({1, 2, 3})).chunks == 2);
}

TEST_CASE("A pin is told from another one of the same last key by its length") {  // found by the simulator: seed 11
  CoreFixture f;
  const SessionId session = f.Worker("engine", kSpace);
  REQUIRE(f.Keep(session, KeysOf({1, 2, 3})) == 3);
  REQUIRE(Pin(f, session, KeysOf({1, 2, 3})).chunks == 3);
  CHECK(Pin(f, session, KeysOf({3})).chunks == 0);  // hangs elsewhere: nothing is there
  Unpin(f, session, KeysOf({3}));
  CHECK(f.core->pins().size() == 1);
}

TEST_CASE("Pinning again pins what is there then: a pin on what was lost and stored again holds the new chunks") {
  CoreFixture f;
  const SessionId session = f.Worker("engine", kSpace);
  REQUIRE(f.Keep(session, KeysOf({1, 2})) == 2);
  REQUIRE(Pin(f, session, KeysOf({1, 2})).chunks == 2);
  const LookupAnswered hit = f.Lookup(session, KeysOf({1, 2}), absl::Seconds(10));
  const auto load = f.Load(session, hit.lease, 0, 2);
  REQUIRE(load.has_value());
  CopyFinished corrupt{load->op, absl::DataLossError("a checksum doesn't match")};
  corrupt.corrupt = {0, 1};
  f.Do(corrupt);
  f.Do(ReleaseAsked{session, hit.lease});
  REQUIRE(f.Lookup(session, KeysOf({1, 2})).chunks == 0);
  REQUIRE(f.Keep(session, KeysOf({1, 2})) == 2);
  CHECK(Pin(f, session, KeysOf({1, 2})).chunks == 2);
  for (uint64_t n = 100; n < 150; ++n) REQUIRE(f.Keep(session, {KeyOf(n)}) == 1);
  CHECK(f.Lookup(session, KeysOf({1, 2})).chunks == 2);
  CHECK(f.slots->live_slots() == 16);  // the lost ones are gone
  CHECK(f.core->pins()[0].count == 2);
}

TEST_CASE("A pin in a hybrid space keeps what its position needs, and no more") {
  SpaceSpec spec = SpaceNamed("hybrid", {KiB(4)});
  spec.groups.push_back({.reuse = {GroupKind::kWindow, 1}, .slot_bytes = {KiB(4)}});
  CoreFixture f;
  const SessionId session = f.Worker("engine", spec);
  REQUIRE(f.Keep(session, KeysOf({1, 2, 3})) == 3);
  REQUIRE(f.Keep(session, KeysOf({1, 2, 3}), {}, GroupId{1}) == 3);
  CHECK(Pin(f, session, KeysOf({1, 2, 3})).chunks == 3);
  CHECK(f.core->pins()[0].bytes == KiB(16));  // three chunks of the full group, one of the window
  for (uint64_t n = 100; n < 150; ++n) REQUIRE(f.Keep(session, {KeyOf(n)}) == 1);
  CHECK(f.Lookup(session, KeysOf({1, 2, 3})).chunks == 3);
  CHECK(f.Lookup(session, KeysOf({1, 2})).chunks == 0);  // its window has gone
}

}  // namespace
}  // namespace kvist::core
