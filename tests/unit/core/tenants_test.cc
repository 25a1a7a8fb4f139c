#include "daemon/core/tenants.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core/core_fixture.h"

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

}  // namespace
}  // namespace kvist::core
