#include "daemon/core/tenants.h"

#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core/core_fixture.h"
#include "tests/unit/core/three_tiers.h"

namespace kvist::core {
namespace {

uint32_t Kept(CoreFixture& f, SessionId session, uint64_t first, uint64_t count) {
  uint32_t kept = 0;
  for (uint64_t n = first; n < first + count; ++n) kept += f.Lookup(session, {KeyOf(n)}).chunks;
  return kept;
}

const CoreStatus::TenantRow& Row(const CoreStatus& status, const std::string& name) {
  for (const auto& row : status.tenants) {
    if (row.name == name) return row;
  }
  FAIL("no tenant " << name);
  return status.tenants[0];
}

TEST_CASE("A tenant at its quota evicts its own chunks, and nobody else's") {
  CoreFixture::Options options;
  options.slabs = 2;  // 32 slots
  options.core.quotas["small"] = KiB(4 * 6);
  CoreFixture f(options);
  const SessionId small = f.Worker("s", SpaceNamed("space", {KiB(4)}, "small"));
  SpaceSpec other = SpaceNamed("other", {KiB(4)}, "other");
  const SessionId big = f.Worker("o", other);
  for (uint64_t n = 0; n < 10; ++n) REQUIRE(f.Keep(big, {KeyOf(n)}) == 1);
  for (uint64_t n = 100; n < 140; ++n) REQUIRE(f.Keep(small, {KeyOf(n)}) == 1);
  CHECK(Kept(f, small, 100, 40) == 6);
  CHECK(Kept(f, small, 134, 6) == 6);  // the newest
  CHECK(Kept(f, big, 0, 10) == 10);
  const CoreStatus status = f.core->status();
  CHECK(Row(status, "small").used == KiB(24));
  CHECK(Row(status, "small").quota == KiB(24));
  CHECK(Row(status, "small").evictions == 34);
  CHECK(Row(status, "other").evictions == 0);

  // All leased: nothing of its own may go, so it stores nothing more, though the pool has room.
  for (uint64_t n = 134; n < 140; ++n) f.Lookup(small, {KeyOf(n)}, absl::Seconds(10));
  CHECK(f.Keep(small, {KeyOf(200)}) == 0);
  CHECK(f.ended->refused == 1);

  f.Do(QuotaSet{"small", KiB(4 * 8)});
  CHECK(f.Keep(small, {KeyOf(200)}) == 1);
  f.Do(QuotaSet{"other", KiB(4 * 4)});
  CHECK(f.Keep(big, {KeyOf(50)}) == 1);
  CHECK(Row(f.core->status(), "other").used == KiB(16));
  CHECK(Kept(f, big, 7, 3) + Kept(f, big, 50, 1) == 4);
  f.Do(QuotaSet{"other", std::nullopt});
  CHECK(Row(f.core->status(), "other").quota == KiB(128));
}

TEST_CASE("A quota above the pool is the pool, so that its tenant gives way like one without") {
  CoreFixture::Options options;
  options.slabs = 2;  // 32 slots
  options.core.quotas["large"] = GiB(1);
  CoreFixture f(options);
  const SessionId large = f.Worker("l", SpaceNamed("l", {KiB(4)}, "large")),
                  other = f.Worker("o", SpaceNamed("o", {KiB(4)}, "o"));
  for (uint64_t n = 0; n < 32; ++n) REQUIRE(f.Keep(large, {KeyOf(n)}) == 1);
  CHECK(Row(f.core->status(), "large").quota == KiB(128));
  for (uint64_t n = 0; n < 100; ++n) REQUIRE(f.Keep(other, {KeyOf(n)}) == 1);
  CHECK(Row(f.core->status(), "large").used <= KiB(4 * 17));  // each has about half
  CHECK(f.core->status().quotas == std::vector<std::pair<std::string, Bytes>>{{"large", GiB(1)}});
  f.Do(QuotaSet{"absent", KiB(4)});
  f.Do(QuotaSet{"large", std::nullopt});
  CHECK(f.core->status().quotas == std::vector<std::pair<std::string, Bytes>>{{"absent", KiB(4)}});
  f.Worker("a", SpaceNamed("a", {KiB(4)}, "absent"));
  CHECK(Row(f.core->status(), "absent").quota == KiB(4));
}

TEST_CASE("A chunk that is larger than its tenant's quota is refused") {
  CoreFixture::Options options;
  options.core.quotas["t"] = KiB(4);
  CoreFixture f(options);
  const SessionId session = f.Worker("s", SpaceNamed("space", {KiB(8)}, "t"));
  CHECK(f.Keep(session, {KeyOf(1)}) == 0);
  CHECK(f.ended->refused == 1);
  CHECK(f.ended->status.ok());
}

TEST_CASE("A flood evicts others' chunks only until it has as much of the pool as they have") {
  CoreFixture::Options options;
  options.slabs = 2;  // 32 slots
  CoreFixture f(options);
  const SessionId a = f.Worker("a", SpaceNamed("a", {KiB(4)}, "a")), b = f.Worker("b", SpaceNamed("b", {KiB(4)}, "b")),
                  flood = f.Worker("f", SpaceNamed("f", {KiB(4)}, "flood"));
  for (uint64_t n = 0; n < 24; ++n) REQUIRE(f.Keep(a, {KeyOf(n)}) == 1);
  for (uint64_t n = 0; n < 6; ++n) REQUIRE(f.Keep(b, {KeyOf(n)}) == 1);
  for (uint64_t n = 0; n < 500; ++n) REQUIRE(f.Keep(flood, {KeyOf(n)}) == 1);
  CHECK(Kept(f, b, 0, 6) == 6);  // had less than its share all the time
  CHECK(Kept(f, a, 0, 24) >= 12);
  CHECK(Kept(f, flood, 0, 500) <= 14);
  // Leased chunks of the largest don't block the others.
  for (uint64_t n = 0; n < 24; ++n) f.Lookup(a, {KeyOf(n)}, absl::Seconds(10));
  for (uint64_t n = 0; n < 20; ++n) REQUIRE(f.Keep(b, {KeyOf(1000 + n)}) == 1);
}

// 32 slots; quotas of so many slots.
CoreFixture::Options Quotas(const std::map<std::string, uint64_t>& slots) {
  CoreFixture::Options options;
  options.slabs = 2;
  for (const auto& [tenant, count] : slots) options.core.quotas[tenant] = KiB(4) * count;
  return options;
}

SessionId WorkerOf(CoreFixture& f, const std::string& tenant) {
  return f.Worker(tenant, SpaceNamed(tenant, {KiB(4)}, tenant));
}

// Chunks `first` and on, one by one; how many were kept.
uint32_t Fill(CoreFixture& f, SessionId session, uint64_t first, uint64_t count) {
  uint32_t kept = 0;
  for (uint64_t n = first; n < first + count; ++n) kept += f.Keep(session, {KeyOf(n)});
  return kept;
}

TEST_CASE("A tenant at its quota loses nothing to a flood of one that has none") {
  CoreFixture f(Quotas({{"a", 16}}));
  const SessionId a = WorkerOf(f, "a"), b = WorkerOf(f, "b");
  REQUIRE(Fill(f, a, 0, 16) == 16);
  CHECK(Fill(f, b, 1000, 500) == 500);
  CHECK(Kept(f, a, 0, 16) == 16);
  CHECK(Row(f.core->status(), "a").evictions == 0);
  CHECK(Row(f.core->status(), "b").used == KiB(4 * 16));

  // Nor in one large store, of which nothing may go before it is over.
  std::vector<ChunkKey> many;
  for (uint64_t n = 2000; n < 2032; ++n) many.push_back(KeyOf(n));
  CHECK(f.Keep(b, many) == 16);
  CHECK(Kept(f, a, 0, 16) == 16);

  // Nor when all that the other one has is leased: then it is refused.
  REQUIRE(f.Lookup(b, many, absl::Seconds(10)).chunks == 16);
  CHECK(f.Keep(b, {KeyOf(3000)}) == 0);
  CHECK(f.ended->refused == 1);
  CHECK(Kept(f, a, 0, 16) == 16);
}

TEST_CASE("What a tenant has above its quota, or without one, goes before what is within another's") {
  CoreFixture f(Quotas({{"a", 16}, {"b", 8}}));
  const SessionId a = WorkerOf(f, "a"), b = WorkerOf(f, "b"), c = WorkerOf(f, "c");
  REQUIRE(Fill(f, c, 0, 32) == 32);  // nobody else has asked
  CHECK(Fill(f, a, 100, 16) == 16);
  CHECK(Fill(f, b, 200, 8) == 8);
  CHECK(Row(f.core->status(), "c").used == KiB(4 * 8));
  f.Do(QuotaSet{"a", KiB(4 * 12)});  // live: what it has above that may go, and goes first
  CHECK(Fill(f, c, 300, 4) == 4);
  CHECK(Row(f.core->status(), "a").used == KiB(4 * 12));
  CHECK(Fill(f, c, 400, 40) == 40);
  CHECK(Row(f.core->status(), "a").used == KiB(4 * 12));
  CHECK(Kept(f, b, 200, 8) == 8);
  f.Do(QuotaSet{"a", std::nullopt});  // it had more than c: one like others from now on
  f.Do(QuotaSet{"b", KiB(4 * 9)});
  CHECK(Fill(f, b, 500, 1) == 1);
  CHECK(Row(f.core->status(), "a").used + Row(f.core->status(), "c").used == KiB(4 * 23));
  CHECK(Kept(f, b, 200, 8) == 8);
}

TEST_CASE("Quotas that are more than the pool promise nothing: who uses most of his gives way, as without them") {
  CoreFixture f(Quotas({{"a", 16}, {"absent", 16}}));
  const SessionId a = WorkerOf(f, "a"), b = WorkerOf(f, "b");
  REQUIRE(Fill(f, a, 0, 16) == 16);
  Fill(f, b, 1000, 16);
  SECTION("they fit") {
    Fill(f, b, 2000, 100);
    CHECK(Row(f.core->status(), "a").used == KiB(4 * 16));
  }
  SECTION("they don't") {
    f.Do(QuotaSet{"absent", KiB(4 * 17)});
    Fill(f, b, 2000, 100);
    CHECK(Row(f.core->status(), "a").used < KiB(4 * 12));
    CHECK(Row(f.core->status(), "a").used >= KiB(4 * 10));  // 16 / (16 + 32) of the pool
  }
}

// 16 slots over a disk: six for each of two tenants, of which "tenant" has four chunks on the disk and none in slots, and "a" six in both;
// "b" has filled the rest of the slots, and nothing of it is on the disk.
struct FloodedOverDisk {
  FloodedOverDisk() : node(Options()), reader(node.worker), a(WorkerOf(node.f, "a")), b(WorkerOf(node.f, "b")) {
    node.Do(RemoteReachable{false});
    for (const char* name : {"tenant", "a"}) node.Do(QuotaSet{name, KiB(4) * 6});
    node.Keep(prompt);
    node.Flush();
    node.Clear(Tier::kDram, prompt, /*of_space=*/false);
    node.worker = a;
    for (uint64_t n = 100; n < 106; ++n) node.Keep({KeyOf(n)});
    node.Flush();
    node.hold_writes = true;
    node.worker = b;
    for (uint64_t n = 200; n < 210; ++n) node.Keep({KeyOf(n)});
    REQUIRE(node.f.slots->live_slots() == 16);
  }
  static CoreFixture::Options Options() {
    CoreFixture::Options options = ThreeTiersOptions();
    options.core.disk = CoreOptions::Disk{};
    return options;
  }
  uint64_t UsedBy(const std::string& tenant) const { return Row(node.f.core->status(), tenant).used / KiB(4); }
  void AskForPrompt() {
    node.Do(LookupAsked{reader, RequestTag{1}, prompt, absl::Seconds(10)});
    node.Rest();
  }

  const std::vector<ChunkKey> prompt = KeysOf({1, 2, 3, 4});
  ThreeTiers node;
  SessionId reader, a, b;
};

TEST_CASE(
    "What is read from disk takes no slots of who has no more than its quota, but waits for what others have too much") {
  FloodedOverDisk world;
  world.AskForPrompt();
  CHECK(world.node.reads.empty());
  CHECK(world.UsedBy("a") == 6);
  world.node.hold_writes = false;
  world.node.EndWrites();
  CHECK(world.node.reads.size() == 4);
  CHECK(world.UsedBy("a") == 6);
  CHECK(world.UsedBy("b") == 6);
}

TEST_CASE("What is read from disk waits for nobody when all that others have too much is in use") {
  FloodedOverDisk world;
  world.node.hold_writes = false;
  world.node.EndWrites();
  for (uint64_t n = 200; n < 210; ++n) world.node.Do(LookupAsked{world.b, RequestTag{n}, KeysOf({n}), absl::Seconds(100)});
  REQUIRE(world.node.f.core->status().leases == 10);
  world.AskForPrompt();
  CHECK(world.node.reads.size() == 4);
  CHECK(world.UsedBy("a") == 2);
}

TEST_CASE("Who has no quota gets what all quotas leave, and nothing of a full pool when they leave nothing") {
  CoreFixture f(Quotas({{"a", 16}, {"b", 16}}));
  const SessionId a = WorkerOf(f, "a"), b = WorkerOf(f, "b"), c = WorkerOf(f, "c");
  CHECK(Fill(f, c, 0, 5) == 5);  // as long as it isn't full
  REQUIRE(Fill(f, a, 100, 16) == 16);
  REQUIRE(Fill(f, b, 200, 16) == 16);
  CHECK(Row(f.core->status(), "c").used == Bytes{0});
  CHECK(Fill(f, c, 300, 5) == 0);
  CHECK(f.ended->refused == 1);
  f.Do(QuotaSet{"b", KiB(4 * 8)});
  CHECK(Fill(f, c, 400, 50) == 50);
  CHECK(Row(f.core->status(), "c").used == KiB(4 * 8));
  CHECK(Kept(f, a, 100, 16) == 16);
}

absl::Status PinOf(CoreFixture& f, SessionId session, uint64_t n) {
  const ChunkKey key = KeyOf(n);
  return std::get<Answered>(f.Do(PinAsked{session, RequestTag{f.next_tag++}, {&key, 1}}).at(0)).status;
}

absl::Status AllocateFor(CoreFixture& f, SessionId session, uint32_t chunks) {
  return std::get<Answered>(f.Do(AllocateAsked{session, RequestTag{f.next_tag++}, GroupId{0}, chunks}).at(0)).status;
}

TEST_CASE("What nobody can evict of a tenant without a quota is bounded by a share of what all quotas leave") {
  CoreFixture::Options options = Quotas({{"a", 24}});
  options.core.pin_share = options.core.private_share = 0.5;
  CoreFixture f(options);
  const SessionId a = WorkerOf(f, "a"), c = WorkerOf(f, "c");
  REQUIRE(Fill(f, c, 100, 8) == 8);
  for (uint64_t n = 100; n < 104; ++n) CHECK(PinOf(f, c, n).ok());
  CHECK(absl::IsResourceExhausted(PinOf(f, c, 104)));
  CHECK(absl::IsResourceExhausted(AllocateFor(f, c, 5)));
  CHECK(AllocateFor(f, c, 4).ok());
  CHECK(Fill(f, a, 0, 24) == 24);
  CHECK(Kept(f, a, 0, 24) == 24);

  // Pins stay when others' quotas leave less; none come.
  f.Do(QuotaSet{"b", KiB(4 * 8)});
  CHECK(f.core->pins().size() == 4);
  CHECK(PinOf(f, c, 100).ok());  // again
  const std::vector<ChunkKey> last = KeysOf({103});
  f.Do(UnpinAsked{c, RequestTag{1}, last});
  CHECK(absl::IsResourceExhausted(PinOf(f, c, 103)));
  // Quotas that don't fit promise nothing.
  f.Do(QuotaSet{"b", KiB(4 * 16)});
  CHECK(PinOf(f, c, 103).ok());
}

TEST_CASE("Those without a quota keep the rest of the pool, also where slabs end in bytes that no slot fits into") {
  CoreFixture::Options options;
  options.slabs = 16;
  options.core.quotas["a"] = KiB(40 * 10);
  CoreFixture f(options);
  // One slot of 36 KiB in a slab of 64: the pool is full when little more than half of it is used.
  const SessionId a = f.Worker("a", SpaceNamed("of a", {KiB(36)}, "a"));
  const SessionId c = f.Worker("c", SpaceNamed("of c", {KiB(36)}, "c"));
  REQUIRE(Fill(f, a, 100, 8) == 8);
  REQUIRE(Fill(f, c, 200, 8) == 8);
  CHECK(Fill(f, a, 300, 8) == 8);
  CHECK(Row(f.core->status(), "c").used == KiB(36 * 8));
}

TEST_CASE(
    "Within its quota a tenant gets in, though all that others have too much is leased or their slots are of another size") {
  CoreFixture f(Quotas({{"a", 16}, {"b", 8}}));
  const SessionId a = WorkerOf(f, "a"), c = WorkerOf(f, "c");
  SECTION("leased") {
    std::vector<ChunkKey> many;
    for (uint64_t n = 0; n < 24; ++n) many.push_back(KeyOf(n));
    REQUIRE(f.Keep(c, {many.begin(), many.begin() + 16}) == 16);
    REQUIRE(f.Lookup(c, many, absl::Seconds(10)).chunks == 16);
    for (uint64_t n = 0; n < 16; n += 2) {  // both in each slab
      REQUIRE(Fill(f, a, 100 + n, 2) == 2);
    }
    const SessionId b = WorkerOf(f, "b");
    CHECK(Fill(f, b, 200, 8) == 8);
    CHECK(Row(f.core->status(), "c").used == KiB(4 * 16));
  }
  SECTION("of another size") {
    for (uint64_t n = 0; n < 16; ++n) {  // both in each slab
      REQUIRE(Fill(f, a, 100 + n, 1) == 1);
      REQUIRE(Fill(f, c, n, 1) == 1);
    }
    const SessionId b = f.Worker("b", SpaceNamed("b", {KiB(8)}, "b"));
    CHECK(Fill(f, b, 200, 4) > 0);
    CHECK(Row(f.core->status(), "b").used > Bytes{0});
  }
}

}  // namespace
}  // namespace kvist::core
