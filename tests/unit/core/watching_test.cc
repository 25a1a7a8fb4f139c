#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

constexpr uint8_t kInDram = 1u << static_cast<uint8_t>(Tier::kDram);

// What an event says of chunks; nothing where it says nothing.
template <class Event>
std::optional<ChunksChanged> Changed(CoreFixture* f, const Event& event) {
  Effects effects;
  f->core->Handle(event, &effects);
  std::optional<ChunksChanged> changed;
  if (!effects.empty() && std::holds_alternative<ChunksChanged>(effects.back())) {
    changed = std::get<ChunksChanged>(effects.back());
  }
  REQUIRE(f->told.Hear(&effects, *f->core).empty());
  return changed;
}

std::vector<ChunkWhere> All(const Core& core) {
  std::vector<ChunkWhere> chunks;
  for (uint64_t cursor = 0; cursor != Core::kReadAll;) cursor = core.ReadChunks(cursor, 100, &chunks);
  return chunks;
}

// Two chunks are stored by a session, and seen.
struct Stored {
  CoreFixture f;
  SessionId session = f.Worker("engine", SpaceNamed("model", {KiB(8)}));
  SpaceId space = *f.core->FindSpace(SpaceNamed("model", {}).digest);
  std::vector<ChunkKey> keys = KeysOf({1, 2});

  ChunkWhere At(size_t key, uint8_t tiers) const { return {space, GroupId{0}, keys[key], tiers}; }
};

TEST_CASE("A core says nothing of its chunks while nobody watches") {
  CoreFixture f;
  Effects effects;
  f.core->Handle(SessionOpened{SessionId{1}, "engine", Role::kWorker, {}, SpaceNamed("model", {KiB(8)})}, &effects);
  const std::vector<ChunkKey> keys = KeysOf({1});
  f.core->Handle(StoreAsked{SessionId{1}, {}, {}, {}, keys}, &effects);
  f.core->Handle(CopyFinished{std::get<CopyStarted>(effects.back()).op, absl::OkStatus()}, &effects);
  f.core->Handle(ClearAsked{JobId{1}}, &effects);
  REQUIRE(All(*f.core).empty());
  REQUIRE(effects.size() == 3);  // accepted, started, ended
  REQUIRE(std::holds_alternative<OpEnded>(effects.back()));
}

TEST_CASE("A core says where a chunk is when it is whole, not before") {
  Stored s;
  const std::optional<CopyStarted> copy = s.f.Store(s.session, s.keys);
  REQUIRE(All(*s.f.core).empty());
  const auto changed = Changed(&s.f, CopyFinished{copy->op, absl::OkStatus()});
  REQUIRE(changed.has_value());
  REQUIRE_FALSE(changed->again);
  REQUIRE(changed->chunks == std::vector{s.At(0, kInDram), s.At(1, kInDram)});
  REQUIRE(All(*s.f.core) == changed->chunks);
}

TEST_CASE("A core says that a chunk is gone when it is evicted") {
  Stored s;  // a pool of 64 KiB, eight slots
  s.f.Keep(s.session, s.keys);
  const std::vector<ChunkKey> others = KeysOf({11, 12, 13, 14, 15, 16, 17});
  const auto changed = Changed(&s.f, StoreAsked{s.session, {}, {}, {}, others});
  REQUIRE(changed->chunks == std::vector{s.At(1, 0)});
  REQUIRE(All(*s.f.core) == std::vector{s.At(0, kInDram)});
}

TEST_CASE("A core has all its chunks read again when a clear has hidden some, and then says nothing of those") {
  Stored s;
  s.f.Keep(s.session, s.keys);
  const auto changed = Changed(&s.f, ClearAsked{JobId{1}, s.space});
  REQUIRE(changed->again);
  REQUIRE(changed->chunks.empty());
  REQUIRE(All(*s.f.core).empty());
  REQUIRE_FALSE(Changed(&s.f, Tick{s.f.now}).has_value());  // they are freed
  REQUIRE(s.f.core->jobs().current() == nullptr);
}

TEST_CASE("A core that is asked for a space that it hasn't met clears nothing, and has nothing read again") {
  Stored s;
  s.f.Keep(s.session, s.keys);
  REQUIRE_FALSE(Changed(&s.f, ClearAsked{JobId{1}, SpaceId{7}}).has_value());
}

TEST_CASE("A core says that chunks of a cleared prompt are gone as it hides them") {
  Stored s;
  s.f.Keep(s.session, s.keys);
  const auto changed = Changed(&s.f, PromptClearAsked{JobId{1}, s.space, std::span(s.keys).first(1)});
  REQUIRE_FALSE(changed->again);
  REQUIRE(changed->chunks == std::vector{s.At(0, 0)});  // the other hangs on it
  while (s.f.core->has_work()) s.f.PassTime(absl::ZeroDuration());
  REQUIRE(All(*s.f.core).empty());
}

TEST_CASE("A core that is asked says of each chunk by itself where it is, as a lookup would find it") {
  Stored s;  // a pool of eight slots
  const auto where = [&](const std::vector<ChunkKey>& keys) {
    std::vector<uint8_t> tiers(keys.size(), 0xff);
    const uint32_t found = s.f.core->Where(s.space, GroupId{0}, keys, tiers);
    REQUIRE(found == std::count_if(tiers.begin(), tiers.end(), [](uint8_t t) { return t != 0; }));
    return tiers;
  };
  const std::optional<CopyStarted> copy = s.f.Store(s.session, s.keys);
  CHECK(where(s.keys) == std::vector<uint8_t>{0, 0});  // not whole yet
  s.f.Do(CopyFinished{copy->op, absl::OkStatus()});
  CHECK(where(KeysOf({9, 2, 1, 2})) == std::vector<uint8_t>{0, kInDram, kInDram, kInDram});
  SECTION("one that is evicted is nowhere") {
    s.f.Keep(s.session, KeysOf({11, 12, 13, 14, 15, 16, 17}));
    CHECK(where(s.keys) == std::vector<uint8_t>{kInDram, 0});
  }
  SECTION("one that hangs on what was dropped, too, and what a clear has hidden") {
    s.f.Do(PromptClearAsked{JobId{1}, s.space, std::span(s.keys).first(1)});
    CHECK(where(s.keys) == std::vector<uint8_t>{0, 0});
  }
  SECTION("asking is no use: what was stored first still goes first") {
    s.f.Keep(s.session, KeysOf({11, 12, 13, 14, 15, 16}));
    CHECK(where(s.keys) == std::vector<uint8_t>{kInDram, kInDram});
    s.f.Keep(s.session, KeysOf({21}));
    CHECK(where(s.keys) == std::vector<uint8_t>{kInDram, 0});
  }
}

TEST_CASE("Chunks are read a few at a time, from few places") {
  CoreFixture f({.core = {}, .slab_bytes = KiB(64), .slabs = 16});
  const SessionId session = f.Worker("engine", SpaceNamed("model", {KiB(8)}));
  std::vector<ChunkKey> keys;
  for (uint64_t n = 0; n < 100; ++n) keys.push_back(KeyOf(n));
  f.Keep(session, keys);
  std::vector<ChunkWhere> chunks;
  REQUIRE(f.core->ReadChunks(0, 7, &chunks) == 7);
  REQUIRE(chunks.size() == 7);
  REQUIRE(f.core->ReadChunks(96, 7, &chunks) == Core::kReadAll);
  REQUIRE(chunks.size() == 11);
  REQUIRE(f.core->ReadChunks(1000, 7, &chunks) == Core::kReadAll);

  // All but the last are gone: a call looks at so many places and no more.
  f.Do(PromptClearAsked{JobId{1}, SpaceId{0}, std::span(keys).first(1)});
  while (f.core->has_work()) f.PassTime(absl::ZeroDuration());
  chunks.clear();
  REQUIRE(f.core->ReadChunks(0, 7, &chunks) == uint64_t{7} * Core::kPlacesRead);
  REQUIRE(chunks.empty());
}

}  // namespace
}  // namespace kvist::core
