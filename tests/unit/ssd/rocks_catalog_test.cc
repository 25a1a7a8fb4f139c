#include "storage/ssd/rocks_catalog.h"

#include <sys/stat.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "storage/base/check.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/catalog_history.h"

namespace kvist::ssd {
namespace {

using test::CommitNow;
using test::LoadNow;

constexpr absl::Duration kLong = absl::Seconds(60);

RocksCatalogOptions In(const kvist::test::TempDir& dir) {
  RocksCatalogOptions options;
  options.folder = dir / "ssd";
  options.write_buffer = KiB(64);  // so that tables come about
  return options;
}

std::unique_ptr<RocksCatalog> Opened(RocksCatalogOptions options) {
  absl::StatusOr<std::unique_ptr<RocksCatalog>> catalog = RocksCatalog::Open(std::move(options));
  INFO(catalog.status());
  REQUIRE(catalog.ok());
  return *std::move(catalog);
}

// Holds the committer at one of its steps until it is let on.
class Gate {
 public:
  std::function<void(std::string_view)> At(std::string step) {
    return [this, step](std::string_view at) {
      if (at != step) return;
      const absl::MutexLock lock(&mutex_);
      reached_ = closed_;
      changed_.SignalAll();
      const absl::Time end = absl::Now() + kLong;
      while (closed_) KVIST_CHECK(!changed_.WaitWithDeadline(&mutex_, end));
    };
  }
  void Close() {
    const absl::MutexLock lock(&mutex_);
    closed_ = true;
    reached_ = false;
  }
  void AwaitSomebody() {
    const absl::MutexLock lock(&mutex_);
    const absl::Time end = absl::Now() + kLong;
    while (!reached_) KVIST_CHECK(!changed_.WaitWithDeadline(&mutex_, end));
  }
  void Open() {
    const absl::MutexLock lock(&mutex_);
    closed_ = false;
    changed_.SignalAll();
  }

 private:
  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool reached_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST_CASE("RocksCatalog has what a map has after any history, and after each restart") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  const kvist::test::TempDir dir;
  test::Rows model;
  uint64_t next = 0;
  for (int life = 0; life < 4; ++life) {
    const std::unique_ptr<RocksCatalog> catalog = Opened(In(dir));
    CHECK(catalog->report().kind == (life == 0 ? OpenReport::kNew : OpenReport::kClean));
    for (int i = 0; i < 300; ++i) {
      CatalogBatch batch = test::BatchOf(seed, next++);
      test::Apply(batch, &model);
      if (i % 50 == 49) {
        REQUIRE(CommitNow(catalog.get(), std::move(batch)).ok());
        const test::Loaded loaded = LoadNow(catalog.get());
        REQUIRE(loaded.report.status.ok());
        REQUIRE(loaded.report.skipped == 0);
        REQUIRE(loaded.rows == model);
      } else {
        REQUIRE(catalog->Commit(std::move(batch), [](const absl::Status& status) { KVIST_CHECK(status.ok()); }).ok());
      }
    }
  }
}

TEST_CASE("RocksCatalog keeps whose it is, and whether a rebuild is pending, until it was finished") {
  const kvist::test::TempDir dir;
  StoreId store;
  {
    const std::unique_ptr<RocksCatalog> catalog = Opened(In(dir));
    CHECK(catalog->report().rebuild_pending);
    store = catalog->report().store;
    CHECK(store != StoreId{});
    REQUIRE(CommitNow(catalog.get(), test::BatchOf(1, 0)).ok());
  }
  {
    const std::unique_ptr<RocksCatalog> catalog = Opened(In(dir));
    CHECK(catalog->report().rebuild_pending);
    CHECK(catalog->report().store == store);
    CatalogBatch end;
    end.FinishRebuild();
    REQUIRE(CommitNow(catalog.get(), std::move(end)).ok());
  }
  RocksCatalogOptions options = In(dir);
  options.store = store;
  CHECK_FALSE(Opened(options)->report().rebuild_pending);
  options.store->bytes[5] ^= 1;
  const std::unique_ptr<RocksCatalog> foreign = Opened(options);
  CHECK(foreign->report().kind == OpenReport::kSetAside);
  CHECK(foreign->report().store == *options.store);
  CHECK(absl::StrContains(foreign->report().message, "another store"));
  CHECK(LoadNow(foreign.get()).rows.empty());
}

TEST_CASE("RocksCatalog calls back in order, each once, after the group was written") {
  const kvist::test::TempDir dir;
  Gate gate;
  RocksCatalogOptions options = In(dir);
  options.before_step = gate.At("commit: write");
  const std::unique_ptr<RocksCatalog> catalog = Opened(options);
  gate.Close();
  std::vector<int> order;  // the committer's, then ours
  absl::Notification all;
  constexpr int kBatches = 200;
  for (int i = 0; i < kBatches; ++i) {
    REQUIRE(catalog
                ->Commit(test::BatchOf(2, i),
                         [&, i](const absl::Status& status) {
                           order.push_back(status.ok() ? i : -1);
                           if (i == kBatches - 1) all.Notify();
                         })
                .ok());
    if (i == 0) gate.AwaitSomebody();
  }
  CHECK(catalog->stats().commits == 0);
  gate.Open();
  REQUIRE(all.WaitForNotificationWithTimeout(kLong));
  for (int i = 0; i < kBatches; ++i) CHECK(order[i] == i);
  CHECK(catalog->stats().commits == kBatches);
  CHECK(catalog->stats().groups == 2);  // the first, and all that waited for it
}

TEST_CASE("RocksCatalog takes no more commits than its bounds, and says so") {
  const kvist::test::TempDir dir;
  Gate gate;
  RocksCatalogOptions options = In(dir);
  options.before_step = gate.At("commit: write");
  options.waiting_batches_max = 3;
  const std::unique_ptr<RocksCatalog> catalog = Opened(options);
  gate.Close();
  const auto count = std::make_shared<std::atomic<int>>(0);
  const Catalog::Done done = [count](const absl::Status&) { ++*count; };
  REQUIRE(catalog->Commit(test::BatchOf(3, 0), done).ok());
  gate.AwaitSomebody();
  for (int i = 1; i < 4; ++i) REQUIRE(catalog->Commit(test::BatchOf(3, i), done).ok());
  CHECK(absl::IsResourceExhausted(catalog->Commit(test::BatchOf(3, 4), done)));
  gate.Open();
  REQUIRE(LoadNow(catalog.get()).report.status.ok());
  // Room again, at the latest when the one before is told of.
  absl::Status again = absl::UnknownError("");
  for (const absl::Time end = absl::Now() + kLong; !again.ok() && absl::Now() < end;)
    again = CommitNow(catalog.get(), test::BatchOf(3, 4));
  CHECK(again.ok());
  CHECK(*count == 4);
}

TEST_CASE("RocksCatalog loads in batches, lower positions first, while others commit, and waits for its sink") {
  const kvist::test::TempDir dir;
  const std::unique_ptr<RocksCatalog> catalog = Opened(In(dir));
  constexpr uint32_t kChunks = 20'000;
  std::mt19937_64 random(4);
  for (uint32_t i = 0; i < kChunks;) {
    CatalogBatch batch;
    for (uint32_t n = 0; n < 1000; ++n, ++i) {
      ChunkRow row;
      row.id.position = static_cast<uint32_t>(random() % 100);
      std::memcpy(row.id.key.bytes.data(), &i, sizeof i);
      row.places.push_back({1, 1 + i});
      batch.Put(row);
    }
    REQUIRE(CommitNow(catalog.get(), std::move(batch)).ok());
  }

  // The sink holds the load at its first batch; what is committed meanwhile isn't part of it.
  struct Holding : test::Collector {
    bool Take(RowBatch batch) override {
      const bool more = test::Collector::Take(std::move(batch));
      if (!first.HasBeenNotified()) first.Notify();
      KVIST_CHECK(on.WaitForNotificationWithTimeout(kLong));
      return more;
    }
    absl::Notification first, on;
  } sink;
  REQUIRE(catalog->Load(&sink).ok());
  REQUIRE(sink.first.WaitForNotificationWithTimeout(kLong));
  test::Collector second;
  CHECK(absl::IsFailedPrecondition(catalog->Load(&second)));
  CatalogBatch late;
  ChunkRow row;
  row.id.position = 1000;
  row.places.push_back({1, 1});
  late.Put(row);
  REQUIRE(CommitNow(catalog.get(), std::move(late)).ok());
  CHECK(sink.rows.size() == Catalog::kLoadRows);
  sink.on.Notify();
  const LoadReport report = sink.Wait();
  CHECK(report.status.ok());
  CHECK(report.rows == kChunks);
  CHECK(sink.rows.size() == kChunks);
  CHECK(sink.in_order);
  CHECK(sink.largest == Catalog::kLoadRows);
  CHECK(LoadNow(catalog.get()).report.rows == kChunks + 1);

  // A sink that has enough, and a catalog that ends.
  struct Enough : test::Collector {
    bool Take(RowBatch batch) override {
      test::Collector::Take(std::move(batch));
      return false;
    }
  } enough;
  REQUIRE(catalog->Load(&enough).ok());
  CHECK(absl::IsCancelled(enough.Wait().status));
  CHECK(enough.rows.size() == Catalog::kLoadRows);
}

TEST_CASE("RocksCatalog starts over: what was there lies aside, and a load of it ends") {
  const kvist::test::TempDir dir;
  const std::unique_ptr<RocksCatalog> catalog = Opened(In(dir));
  for (int round = 0; round < 4; ++round) {
    REQUIRE(CommitNow(catalog.get(), test::BatchOf(5, round)).ok());
    CHECK_FALSE(LoadNow(catalog.get()).rows.empty());
    REQUIRE(test::StartOverNow(catalog.get()).ok());
    CHECK(LoadNow(catalog.get()).rows.empty());
  }
  CHECK(catalog->stats().set_aside == 4);
  size_t aside = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "ssd"))
    aside += absl::StrContains(entry.path().filename().string(), "quarantine") ? 1 : 0;
  CHECK(aside == RocksCatalogOptions().quarantines_max);
  CHECK(std::filesystem::exists(dir / "ssd/catalog.quarantine-4"));
}

TEST_CASE("RocksCatalog lets its owner alone in: it holds the segments' secrets") {
  const kvist::test::TempDir dir;
  const std::unique_ptr<RocksCatalog> catalog = Opened(In(dir));
  for (const char* path : {"ssd", "ssd/catalog"}) {
    struct stat info {};
    REQUIRE(::stat((dir / path).c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0700);
  }
}

TEST_CASE("RocksCatalog is opened once at a time") {
  const kvist::test::TempDir dir;
  std::unique_ptr<RocksCatalog> catalog = Opened(In(dir));
  REQUIRE(CommitNow(catalog.get(), test::BatchOf(6, 0)).ok());
  const auto second = RocksCatalog::Open(In(dir));
  CHECK(absl::IsFailedPrecondition(second.status()));
  CHECK(absl::StrContains(second.status().message(), "another kvistd"));
  REQUIRE(CommitNow(catalog.get(), test::BatchOf(6, 1)).ok());
  catalog.reset();
  catalog = Opened(In(dir));
  CHECK(catalog->report().kind == OpenReport::kClean);
  CHECK(LoadNow(catalog.get()).rows == test::RowsAfter(6, 2));
}

TEST_CASE("RocksCatalog knows up to which record it is complete, by the highest that a batch has said") {
  const kvist::test::TempDir dir;
  std::unique_ptr<RocksCatalog> catalog = Opened(In(dir));
  CHECK(catalog->report().settled == 0);
  for (const uint64_t settled : {7, 3, 0}) {
    CatalogBatch batch = test::BatchOf(7, settled);
    batch.Settle(settled);
    REQUIRE(CommitNow(catalog.get(), std::move(batch)).ok());
  }
  CatalogBatch nothing_else;
  nothing_else.Settle(9);
  REQUIRE(CommitNow(catalog.get(), std::move(nothing_else)).ok());
  for (int life = 0; life < 2; ++life) {
    catalog.reset();
    catalog = Opened(In(dir));
    CHECK(catalog->report().settled == 9);
  }
  REQUIRE(test::StartOverNow(catalog.get()).ok());
  catalog.reset();
  CHECK(Opened(In(dir))->report().settled == 0);
}

TEST_CASE("RocksCatalog says what is wrong with its options and its folder") {
  CHECK(absl::StrContains(RocksCatalog::Open({}).status().message(), "folder"));
  const kvist::test::TempDir dir;
  RocksCatalogOptions options = In(dir);
  options.folder = dir / "no/such";
  CHECK(absl::StrContains(RocksCatalog::Open(options).status().message(), "no/such"));
}

}  // namespace
}  // namespace kvist::ssd
