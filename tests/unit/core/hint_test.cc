#include "daemon/core/hint.h"

#include <catch2/catch.hpp>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

const SpaceSpec kConversation = SpaceNamed("space", {KiB(4)});
const Hint kEnded{.session_ended = true};

void Say(CoreFixture& f, SessionId session, const std::vector<ChunkKey>& keys, Hint hint) {
  CHECK(f.Do(HintAsked{session, keys, hint}).empty());
}

TEST_CASE("Chunks of an ended conversation go before all others, from its end") {
  CoreFixture f;  // 16 slots
  const SessionId session = f.Worker("engine", kConversation);
  for (uint64_t n = 100; n < 112; ++n) REQUIRE(f.Keep(session, {KeyOf(n)}) == 1);
  REQUIRE(f.Keep(session, KeysOf({1, 2, 3, 4})) == 4);  // the newest
  Say(f, session, KeysOf({3, 4}), kEnded);              // 1 and 2 are a prefix that others share
  REQUIRE(f.Keep(session, {KeyOf(200)}) == 1);
  CHECK(f.Lookup(session, KeysOf({1, 2, 3, 4})).chunks == 3);
}

TEST_CASE("A hit takes a hint back") {
  CoreFixture f;
  const SessionId session = f.Worker("engine", kConversation);
  for (uint64_t n = 100; n < 112; ++n) REQUIRE(f.Keep(session, {KeyOf(n)}) == 1);
  REQUIRE(f.Keep(session, KeysOf({1, 2, 3, 4})) == 4);
  Say(f, session, KeysOf({3, 4}), kEnded);
  CHECK(f.Lookup(session, KeysOf({1, 2, 3, 4})).chunks == 4);
  REQUIRE(f.Keep(session, {KeyOf(200)}) == 1);
  CHECK(f.Lookup(session, KeysOf({1, 2, 3, 4})).chunks == 4);
  CHECK(f.Lookup(session, {KeyOf(100)}).chunks == 0);  // the oldest went
}

TEST_CASE("A hint on chunks that are leased or still being stored counts when that ends") {
  CoreFixture f;
  const SessionId session = f.Worker("engine", kConversation);
  for (uint64_t n = 100; n < 114; ++n) REQUIRE(f.Keep(session, {KeyOf(n)}) == 1);
  REQUIRE(f.Keep(session, KeysOf({1})) == 1);
  const LookupAnswered hit = f.Lookup(session, KeysOf({1}), absl::Seconds(10));
  REQUIRE(hit.lease);
  const auto store = f.Store(session, KeysOf({2}));
  REQUIRE(store.has_value());
  Say(f, session, KeysOf({1, 2, 3}), kEnded);
  f.Finish(store->op);
  f.Do(ReleaseAsked{session, hit.lease});
  REQUIRE(f.Keep(session, {KeyOf(200)}) == 1);
  REQUIRE(f.Keep(session, {KeyOf(201)}) == 1);
  CHECK(f.Lookup(session, KeysOf({1})).chunks + f.Lookup(session, KeysOf({2})).chunks == 0);
  CHECK(f.Lookup(session, {KeyOf(100)}).chunks == 1);
}

TEST_CASE("Expected reuse outweighs the end of a session") {
  CoreFixture f;
  const SessionId session = f.Worker("engine", kConversation);
  for (uint64_t n = 100; n < 115; ++n) REQUIRE(f.Keep(session, {KeyOf(n)}) == 1);
  REQUIRE(f.Keep(session, KeysOf({1})) == 1);
  Say(f, session, KeysOf({1}), {.session_ended = true, .expected_reuse = ExpectedReuse::kSoon});
  Say(f, session, {KeyOf(114)}, {.expected_reuse = ExpectedReuse::kNever, .stop_reason = StopReason::kAborted});
  REQUIRE(f.Keep(session, {KeyOf(200)}) == 1);
  CHECK(f.Lookup(session, KeysOf({1})).chunks == 1);
  CHECK(f.Lookup(session, {KeyOf(114)}).chunks == 0);
}

}  // namespace
}  // namespace kvist::core
