// Many tenants in one pool that is far too small for them, whose quotas an operator changes while their stores run: what Tenants
// promises to each of them, checked after every step against nothing but what the core says of itself.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "daemon/core/tenants.h"
#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

constexpr uint32_t kTenants = 12, kSlots = 96, kSteps = 3000;
constexpr size_t kRunningMost = 10;  // of up to four chunks each: a fourth of the pool
constexpr Bytes kChunk = KiB(4);

std::string Name(uint32_t t) { return "tenant " + std::to_string(t); }

// Rows by tenant's number.
std::vector<CoreStatus::TenantRow> Rows(const CoreFixture& f) {
  std::vector<CoreStatus::TenantRow> rows = f.core->status().tenants;
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::stoul(a.name.substr(a.name.rfind(' '))) < std::stoul(b.name.substr(b.name.rfind(' ')));
  });
  return rows;
}

double Share(Bytes used, Bytes quota) { return static_cast<double>(used.value) / static_cast<double>(quota.value); }

class Crowd {
 public:
  // `fits`: all quotas together are never more than the pool, and so are promises.
  Crowd(uint32_t seed, bool fits) : f_(Options()), random_(seed), fits_(fits) {
    for (uint32_t t = 0; t < kTenants; ++t) {
      const std::string name = Name(t);
      tenants_[t].session = f_.Worker(name, SpaceNamed("s" + std::to_string(t), {kChunk}, name));
    }
  }

  // One thing happens, and then all that was promised holds.
  void Step() {
    if (running_.size() > kRunningMost) return Finish();
    const uint32_t t = random_() % kTenants;
    switch (random_() % 16) {
      case 0:
      case 1: return SetQuota(t);
      case 2:
      case 3: return Lease(t);
      case 4:
      case 5:
      case 6: return Finish();
      case 7: f_.PassTime(absl::Seconds(1)); return;
      default: return Store(t);
    }
  }

  // Everything ends and nobody asks for more: then each, one by one, gets a chunk into the pool, whoever has filled it.
  void CheckNobodyIsShutOut() {
    while (!running_.empty()) Finish();
    f_.PassTime(kLease + absl::Seconds(1));
    for (uint32_t t = 0; t < kTenants; ++t) {
      INFO(Name(t));
      CHECK(f_.Keep(tenants_[t].session, {KeyOf(next_key_++)}) == 1);
    }
  }

  uint64_t stores = 0, refused = 0, quotas_set = 0, evicted_own = 0, evicted_others = 0, lost_by_safe = 0;

 private:
  static constexpr absl::Duration kLease = absl::Seconds(5);

  struct Running {  // a store
    uint32_t tenant;
    OpId op;
  };
  struct OfTenant {
    SessionId session;
    std::vector<ChunkKey> latest;  // keys of its last store that has ended
    uint32_t running = 0;
    absl::Time leased_until = absl::InfinitePast();
  };

  static CoreFixture::Options Options() {
    CoreFixture::Options options;
    options.slabs = kSlots / 16;
    return options;
  }

  // Whether all that it has may be evicted: chunks that are filled, or leased, may not.
  bool Free(uint32_t t) const { return tenants_[t].running == 0 && tenants_[t].leased_until < f_.now; }

  void SetQuota(uint32_t t) {
    ++quotas_set;
    std::optional<Bytes> quota;  // none, next to nothing, some, or more than there is
    const uint64_t most = fits_ ? kSlots / kTenants - 1 : random_() % 2 == 0 ? 4 : 2 * kSlots;
    if (random_() % 4 != 0) quota = kChunk * (1 + random_() % most);
    const auto before = Rows(f_);
    f_.Do(QuotaSet{Name(t), quota});
    const auto after = Rows(f_);
    // By itself it takes nothing away.
    for (uint32_t v = 0; v < kTenants; ++v) REQUIRE(after[v].used == before[v].used);
    REQUIRE(after[t].quota == std::min(quota.value_or(kChunk * kSlots), kChunk * kSlots));
    quotas_[t] = quota;
  }

  // Whether all quotas fit into the pool, so that they are promises.
  bool Promised() const {
    Bytes all{};
    for (const std::optional<Bytes> quota : quotas_) all += quota.value_or(Bytes{});
    return all <= kChunk * kSlots;
  }
  // Whether what a tenant has is promised to it, were it `used`.
  bool Safe(uint32_t t, Bytes used) const { return Promised() && quotas_[t].has_value() && used <= *quotas_[t]; }

  void Lease(uint32_t t) {
    if (tenants_[t].latest.empty()) return;
    if (f_.Lookup(tenants_[t].session, tenants_[t].latest, kLease).chunks > 0) tenants_[t].leased_until = f_.now + kLease;
  }

  void Finish() {
    if (running_.empty()) return;
    const size_t at = random_() % running_.size();
    const Running ends = running_[at];
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(at));
    f_.Finish(ends.op, random_() % 8 == 0 ? absl::CancelledError("given up") : absl::OkStatus());
    --tenants_[ends.tenant].running;
  }

  void Store(uint32_t t) {
    std::vector<ChunkKey> keys;
    for (uint32_t n = 1 + random_() % 4; n > 0; --n) keys.push_back(KeyOf(next_key_++));
    const auto before = Rows(f_);
    const std::optional<CopyStarted> copy = f_.Store(tenants_[t].session, keys);
    const auto after = Rows(f_);
    ++stores;
    if (copy.has_value()) {
      running_.push_back({t, copy->op});
      ++tenants_[t].running;
      tenants_[t].latest = keys;
    } else {
      ++refused;
    }
    CheckQuota(t, copy.has_value(), before, after);
    CheckWhoGaveWay(t, copy.has_value() ? copy->slots.size() : 0, before, after);
  }

  // A quota is never passed, and whoever is at his own takes from nobody.
  void CheckQuota(uint32_t t, bool stored, const std::vector<CoreStatus::TenantRow>& before,
                  const std::vector<CoreStatus::TenantRow>& after) {
    INFO(Name(t) << " of " << before[t].used.value << " of " << before[t].quota.value << " bytes");
    if (stored) {
      REQUIRE(after[t].used <= after[t].quota);
    } else {
      REQUIRE(after[t].used <= before[t].used);
    }
    const bool at_quota = before[t].used + kChunk > before[t].quota;
    for (uint32_t v = 0; v < kTenants; ++v) {
      if (v == t) continue;
      INFO("beside it " << Name(v));
      REQUIRE(after[v].used <= before[v].used);
      if (at_quota) REQUIRE(after[v].evictions == before[v].evictions);
    }
    evicted_own += after[t].evictions - before[t].evictions;
  }

  // Who had to give way used at least as much of its quota as all the others who could have given way instead, the one who stores
  // included. But where quotas are promises, no one within his gave way while another could that wasn't; and none did to a tenant that
  // asked for more than was promised.
  void CheckWhoGaveWay(uint32_t t, size_t stored, const std::vector<CoreStatus::TenantRow>& before,
                       const std::vector<CoreStatus::TenantRow>& after) {
    for (uint32_t v = 0; v < kTenants; ++v) {
      if (v == t || after[v].evictions == before[v].evictions) continue;
      evicted_others += after[v].evictions - before[v].evictions;
      // When its last one went it had that one yet; the others have at most lost some since, and the one who stores has won.
      const double gave = Share(after[v].used + kChunk, after[v].quota);
      const bool was_safe = Safe(v, after[v].used + kChunk);
      lost_by_safe += was_safe;
      INFO(Name(v) << (was_safe ? ", safe, gave way to " : " gave way to ") << Name(t));
      for (uint32_t w = 0; w < kTenants; ++w) {
        if (w == v || !Free(w) || w == t || after[w].used == Bytes{0}) continue;
        INFO("and not " << Name(w));
        const bool safe = Safe(w, after[w].used);
        REQUIRE((safe || !was_safe));
        if (safe == was_safe) REQUIRE(gave >= Share(after[w].used, after[w].quota));
      }
      if (was_safe) {
        REQUIRE(quotas_[t].has_value());
        continue;
      }
      // Of itself: what it had before, less what of its own went; its new chunks are being filled.
      const Bytes own = after[t].used - kChunk * stored;
      if (!Promised() && tenants_[t].running == (stored > 0 ? 1u : 0u) && tenants_[t].leased_until < f_.now &&
          own > Bytes{0}) {
        INFO("which had more");
        REQUIRE(gave >= Share(own, after[t].quota));
      }
    }
  }

  CoreFixture f_;
  std::mt19937 random_;
  const bool fits_;
  std::array<std::optional<Bytes>, kTenants> quotas_;
  std::array<OfTenant, kTenants> tenants_;
  std::vector<Running> running_;
  uint64_t next_key_ = 1;
};

TEST_CASE("Tenants keep to their quotas and give way in order, however quotas change while their stores run") {
  const uint32_t seed = Catch::rngSeed();
  const bool fits = GENERATE(false, true);
  INFO("seed " << seed << (fits ? ", quotas that fit" : ""));
  Crowd crowd(seed, fits);
  for (uint32_t step = 0; step < kSteps; ++step) crowd.Step();
  crowd.CheckNobodyIsShutOut();
  std::printf(
      "fairness: %u tenants, %lu stores (%lu refused), %lu quotas set%s; evicted %lu of their own, %lu of others', %lu of "
      "those safe\n",
      kTenants, crowd.stores, crowd.refused, crowd.quotas_set, fits ? " that fit" : "", crowd.evicted_own,
      crowd.evicted_others, crowd.lost_by_safe);
  CHECK(crowd.evicted_own > 0);
  CHECK(crowd.evicted_others > 0);
  CHECK(crowd.refused > 0);
}

TEST_CASE(
    "Tenants: one that asks for nothing keeps its share, however many flood, whatever quotas that only limit they are "
    "given") {
  const uint32_t seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  CoreFixture::Options options;
  options.slabs = kSlots / 16;
  CoreFixture f(options);
  constexpr uint32_t kFloods = kTenants - 1,
                     kQuiet = kSlots / kTenants;  // as many chunks as each would have of an even split
  const SessionId quiet = f.Worker("quiet", SpaceNamed("quiet", {kChunk}, "quiet"));
  std::vector<ChunkKey> kept;
  for (uint64_t n = 0; n < kQuiet; ++n) {
    kept.push_back(KeyOf(1'000'000 + n));
    REQUIRE(f.Keep(quiet, {kept.back()}) == 1);
  }
  std::vector<SessionId> floods;
  for (uint32_t t = 0; t < kFloods; ++t)
    floods.push_back(f.Worker(Name(t), SpaceNamed("s" + std::to_string(t), {kChunk}, Name(t))));
  f.Do(QuotaSet{"absent", kChunk * (kSlots + 1)});  // more than the pool, so that none of them is a promise
  for (uint64_t n = 0; n < kSteps; ++n) {
    const auto t = static_cast<uint32_t>(random() % kFloods);
    // Quotas that bind, or don't: never such that a flood would use less of its own than the quiet one of the pool.
    if (random() % 8 == 0) f.Do(QuotaSet{Name(t), kChunk * (kSlots / 4 + random() % (2 * kSlots))});
    if (random() % 16 == 0) f.Do(QuotaSet{Name(t), std::nullopt});
    f.Keep(floods[t], {KeyOf(n)});
  }
  uint32_t left = 0;
  for (const ChunkKey& key : kept) left += f.Lookup(quiet, {key}).chunks;
  std::printf("fairness: %u floods beside a quiet tenant of %u chunks: %u of them left\n", kFloods, kQuiet, left);
  CHECK(left >= kQuiet - 1);
}

}  // namespace
}  // namespace kvist::core
