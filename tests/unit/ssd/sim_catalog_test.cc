#include "tests/support/sim_catalog.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "storage/ssd/rocks_catalog.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/catalog_history.h"

namespace kvist::ssd {
namespace {

using kvist::test::SimCatalog;

// The rows that a load gives.
test::Loaded LoadAll(SimCatalog* catalog) {
  test::Collector collector;
  REQUIRE(catalog->Load(&collector).ok());
  while (catalog->LoadStep()) {}
  LoadReport report = collector.Wait();
  CHECK(collector.in_order);
  return {report, collector.rows};
}

TEST_CASE("SimCatalog does what RocksCatalog does with the same history") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  const kvist::test::TempDir dir;
  RocksCatalogOptions options;
  options.folder = dir / "ssd";
  const auto rocks = RocksCatalog::Open(options);
  REQUIRE(rocks.ok());
  SimCatalog sim;
  std::vector<uint64_t> told;
  for (uint64_t i = 0; i < 200; ++i) {
    if (i == 100) {
      sim.StartOver("", [](const absl::Status& status) { CHECK(status.ok()); });
      REQUIRE(test::StartOverNow(rocks->get()).ok());
    }
    REQUIRE(sim.Commit(test::BatchOf(seed, i),
                       [&told, i](const absl::Status& status) {
                         CHECK(status.ok());
                         told.push_back(i);
                       })
                .ok());
    REQUIRE(test::CommitNow(rocks->get(), test::BatchOf(seed, i)).ok());
    if (i % 7 == 0) {
      while (sim.Step()) {}
    }
    if (i % 50 == 49) {
      while (sim.Step()) {}
      const test::Loaded expected = test::LoadNow(rocks->get());
      const test::Loaded found = LoadAll(&sim);
      CHECK(found.rows == expected.rows);
      CHECK(found.rows == sim.durable());
      CHECK(found.report.rows == expected.report.rows);
    }
  }
  CHECK(told.size() == 200);
  CHECK(std::is_sorted(told.begin(), told.end()));
}

TEST_CASE("SimCatalog loses in a crash what wasn't durable, but for what it is told to keep") {
  SimCatalog catalog({.waiting_max = 10, .group_max = 2, .load_rows = 3});
  int told = 0;
  const auto done = [&](const absl::Status& status) { told += status.ok() ? 1 : 0; };
  for (int i = 0; i < 10; ++i) REQUIRE(catalog.Commit(test::BatchOf(1, i), done).ok());
  CHECK(absl::IsResourceExhausted(catalog.Commit(test::BatchOf(1, 10), done)));
  REQUIRE(catalog.Step());
  CHECK(told == 2);
  catalog.Crash(3);
  CHECK(told == 2);
  CHECK(catalog.durable() == test::RowsAfter(1, 5));
  CHECK_FALSE(catalog.Step());
  catalog.Age(2);
  CHECK(catalog.durable() == test::RowsAfter(1, 3));
  const size_t rows = catalog.durable().size();
  catalog.Spoil(catalog.durable().begin()->first);
  {
    const std::unique_ptr<Catalog> next_life = catalog.Open();
    const test::Loaded loaded = LoadAll(&catalog);
    CHECK(loaded.report.skipped == 1);
    CHECK(loaded.rows.size() == rows - 1);
  }
  catalog.Lose();
  CHECK(catalog.durable().empty());
}

TEST_CASE("SimCatalog loses the end of its log as far as that told of chunks anew, when it didn't end cleanly") {
  SimCatalog catalog;
  const auto chunk = [](uint8_t n) {
    ChunkRow row;
    row.id.key.bytes[0] = n;
    row.units = 2;
    row.places = {{.segment = 1, .unit = n}};
    CatalogBatch batch;
    batch.Put(row);
    batch.Settle(n);
    return batch;
  };
  std::unique_ptr<Catalog> life = catalog.Open();
  const auto commit = [&](CatalogBatch batch) {
    REQUIRE(life->Commit(std::move(batch), [](const absl::Status&) {}).ok());
    while (catalog.Step()) {}
  };
  CatalogBatch space;
  space.Put(SpaceRow{.number = 1, .digest = {}, .description = "a space"});
  commit(chunk(1));
  commit(std::move(space));
  for (const uint8_t n : {2, 3, 4}) commit(chunk(n));
  catalog.Crash(0);
  CHECK(catalog.LoseTail(2) == 2);
  CHECK(catalog.durable().size() == 3);
  CHECK(catalog.LoseTail(9) == 1);
  static auto* const dead = new std::vector<std::unique_ptr<Catalog>>();  // their ends never come
  dead->push_back(std::move(life));
  life = catalog.Open();
  CHECK(life->report().settled == 1);
  commit(chunk(5));
  life.reset();
  CHECK(catalog.LoseTail(1) == 0);
}

TEST_CASE("SimCatalog fails as the contract says") {
  SimCatalog catalog;
  absl::Status last;
  const auto commit = [&](int i) {
    REQUIRE(catalog.Commit(test::BatchOf(2, i), [&](const absl::Status& status) { last = status; }).ok());
    REQUIRE(catalog.Step());
    return last;
  };
  REQUIRE(commit(0).ok());
  catalog.Fail(absl::ResourceExhaustedError("full"), false);
  CHECK(absl::IsResourceExhausted(commit(1)));
  CHECK(catalog.durable() == test::RowsAfter(2, 1));
  catalog.Fail(absl::OkStatus(), false);
  CHECK(commit(1).ok());
  catalog.Fail(absl::ResourceExhaustedError("full"), true);
  CHECK(absl::IsResourceExhausted(commit(2)));
  CHECK(catalog.durable() == test::RowsAfter(2, 3));
  catalog.Fail(absl::OkStatus(), false);
  REQUIRE(catalog.Commit({}, [&](const absl::Status& status) { last = status; }).ok());
  REQUIRE(catalog.Step());
  CHECK(last.ok());
  CHECK(catalog.durable() == test::RowsAfter(2, 2));  // it went before that came
  catalog.Fail(absl::UnavailableError("EIO"), true);
  CHECK(absl::IsUnavailable(commit(2)));
  CHECK(catalog.durable() == test::RowsAfter(2, 3));       // the next life finds it,
  CHECK(LoadAll(&catalog).rows == test::RowsAfter(2, 2));  // this one doesn't
  catalog.Fail(absl::OkStatus(), false);
  CHECK(absl::IsUnavailable(commit(3)));
  catalog.StartOver("", [&](const absl::Status& status) { last = status; });
  REQUIRE(catalog.Step());
  CHECK(last.ok());
  CHECK(catalog.rebuild_pending());
  CHECK(commit(3).ok());
  CatalogBatch end;
  end.FinishRebuild();
  REQUIRE(catalog.Commit(std::move(end), [](const absl::Status&) {}).ok());
  REQUIRE(catalog.Step());
  CHECK_FALSE(catalog.rebuild_pending());
}

}  // namespace
}  // namespace kvist::ssd
