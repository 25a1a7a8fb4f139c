// Crashes of a process that works on a catalog, between any two of its steps, and power cuts that take what wasn't flushed.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/ssd/rocks_catalog.h"
#include "tests/support/campaign.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/catalog_history.h"

namespace kvist::ssd {
namespace {

namespace fs = std::filesystem;

struct Life {
  std::string step;
  long nth = 0;
  uint64_t batches = 0;
  std::string extra;
};

// How it ends: minus SIGKILL, or its exit status.
int Live(const kvist::test::TempDir& dir, uint64_t seed, const Life& life) {
  std::vector<std::string> words = {KVIST_CATALOG_VICTIM, dir / "ssd", absl::StrCat(seed),     dir / "acks",
                                    dir / "flushed",      life.step,   absl::StrCat(life.nth), absl::StrCat(life.batches)};
  if (!life.extra.empty()) words.push_back(life.extra);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return kvist::test::InChild([&] {
    ::execv(argv[0], argv.data());
    return 98;
  });
}

uint64_t SizeOf(const std::string& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

// Cuts each file of the catalog to what was flushed of it: since `before`, when everything was, or before.
std::map<ino_t, uint64_t> SizesIn(const std::string& folder) {
  std::map<ino_t, uint64_t> sizes;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; ++it) {
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      sizes[info.st_ino] = static_cast<uint64_t>(info.st_size);
  }
  return sizes;
}

uint64_t CutPower(const kvist::test::TempDir& dir, std::map<ino_t, uint64_t> durable) {
  std::ifstream flushed(dir / "flushed");
  for (ino_t inode = 0; flushed >> inode;) {
    uint64_t size = 0;
    flushed >> size;
    durable[inode] = size;
  }
  uint64_t lost = 0;
  for (fs::recursive_directory_iterator it(dir / "ssd"), end; it != end; ++it) {
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    const uint64_t keep = durable.count(info.st_ino) != 0 ? durable[info.st_ino] : 0;
    if (keep >= static_cast<uint64_t>(info.st_size)) continue;
    lost += static_cast<uint64_t>(info.st_size) - keep;
    REQUIRE(::truncate(it->path().c_str(), static_cast<off_t>(keep)) == 0);
  }
  return lost;
}

// What a new process finds: some whole batches of the history, at least those that were called durable.
uint64_t CheckSurvivors(const kvist::test::TempDir& dir, uint64_t seed, uint64_t acked) {
  RocksCatalogOptions options;
  options.folder = dir / "ssd";
  const auto catalog = RocksCatalog::Open(options);
  INFO(catalog.status());
  REQUIRE(catalog.ok());
  INFO((*catalog)->report().message);
  CHECK((*catalog)->report().kind != OpenReport::kSetAside);
  const test::Loaded loaded = test::LoadNow(catalog->get());
  REQUIRE(loaded.report.status.ok());
  CHECK(loaded.report.skipped == 0);
  const uint64_t found = test::ProgressOf(loaded.rows);
  CHECK(found >= acked);
  CHECK(loaded.rows == test::RowsAfter(seed, found));
  return found;
}

struct Tally {
  uint64_t lives = 0, killed = 0, acked = 0, found = 0, lost_bytes = 0;
};

Tally Crashes(uint64_t seed, int cycles, bool power) {
  const kvist::test::TempDir dir;
  std::mt19937_64 random(seed);
  Tally tally;
  uint64_t acked_before = 0, found_before = 0;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    static const std::vector<std::string> kSteps = {
        "open: no longer clean", "open: database", "open: generation", "open: stamp", "commit: write",
        "commit: write",         "commit: done",   "commit: done",     "flush",       "flush",
        "close: database",       "close: stamp"};
    static const std::vector<std::string> kFirst = {"create: database", "create: meta",  "create: name",
                                                    "create: open",     "create: stamp", "flush"};
    const std::vector<std::string>& steps = cycle == 0 ? kFirst : kSteps;
    const std::string& step = steps[random() % steps.size()];
    const bool often = step == "flush" || step.rfind("commit", 0) == 0;  // the others come once in a life
    const Life life{step, often ? 1 + static_cast<long>(random() % 20) : 1, 1 + random() % 100, {}};
    INFO("seed " << seed << " cycle " << cycle << ": dies before " << life.nth << ". " << life.step << ", " << life.batches
                 << " batches");
    fs::remove(dir / "flushed");
    const std::map<ino_t, uint64_t> durable = SizesIn(dir / "ssd");
    const int end = Live(dir, seed, life);
    REQUIRE((end == 0 || end == -SIGKILL));
    const uint64_t acked_now = SizeOf(dir / "acks") - acked_before;
    acked_before += acked_now;
    if (power) tally.lost_bytes += CutPower(dir, durable);
    const uint64_t found = CheckSurvivors(dir, seed, found_before + acked_now);
    CHECK(found <= found_before + life.batches);
    ++tally.lives;
    tally.killed += end == 0 ? 0 : 1;
    tally.acked += acked_now;
    tally.found = found_before = found;
  }
  return tally;
}

TEST_CASE("RocksCatalog has whole commits, and all that were called durable, after kill -9 between any two steps") {
  const uint64_t seed = std::random_device()();
  const Tally tally = Crashes(seed, kvist::test::Campaign("KVIST_CATALOG_CRASHES", 50, 500), false);
  std::printf("catalog: %lu lives, %lu killed, %lu commits acknowledged, %lu found at the end\n", tally.lives, tally.killed,
              tally.acked, tally.found);
  CHECK(tally.killed > tally.lives / 4);
  CHECK(tally.acked > 0);
}

TEST_CASE("RocksCatalog has them after a power cut that takes what wasn't flushed, too") {
  const uint64_t seed = std::random_device()();
  const Tally tally = Crashes(seed, kvist::test::Campaign("KVIST_CATALOG_CRASHES", 50, 500), true);
  std::printf("catalog: %lu power cuts, %lu bytes lost, %lu commits acknowledged, %lu found at the end\n", tally.lives,
              tally.lost_bytes, tally.acked, tally.found);
  CHECK(tally.lost_bytes > 0);
  CHECK(tally.acked > 0);
}

// Found by seed 3035340784, which died before the 9th flush: a database without its meta row was left, and the next open took it for damage.
TEST_CASE("RocksCatalog that is killed while it is made leaves none, or a whole one") {
  for (long nth = 1; nth <= 25; ++nth) {
    INFO("flush " << nth);
    const kvist::test::TempDir dir;
    REQUIRE(Live(dir, 8, {"flush", nth, 20, {}}) == -SIGKILL);
    CheckSurvivors(dir, 8, SizeOf(dir / "acks"));
  }
}

TEST_CASE("RocksCatalog that is killed while it starts over has all it had, or nothing and a rebuild pending") {
  for (const char* step : {"set aside: move", "create: database", "create: meta", "create: name", "create: open",
                           "create: stamp", "close: stamp"}) {
    INFO(step);
    const kvist::test::TempDir dir;
    REQUIRE(Live(dir, 9, {"", 0, 30, {}}) == 0);
    // The first catalog's making has such steps, too; it is there already.
    REQUIRE(Live(dir, 9, {step, 1, 30, "over=10"}) == -SIGKILL);
    RocksCatalogOptions options;
    options.folder = dir / "ssd";
    const auto catalog = RocksCatalog::Open(options);
    REQUIRE(catalog.ok());
    const test::Loaded loaded = test::LoadNow(catalog->get());
    REQUIRE(loaded.report.status.ok());
    if (std::string(step) == "set aside: move") {
      CHECK(loaded.rows == test::RowsAfter(9, 40));
    } else {
      CHECK(loaded.rows.empty());
      CHECK((*catalog)->report().rebuild_pending);
    }
  }
}

TEST_CASE("RocksCatalog calls nothing durable after a flush has failed, and says Unavailable") {
  const kvist::test::TempDir dir;
  REQUIRE(Live(dir, 10, {"", 0, 20, {}}) == 0);
  REQUIRE(Live(dir, 10, {"", 0, 60, "eio=5"}) == 3);
  CheckSurvivors(dir, 10, SizeOf(dir / "acks"));
}

TEST_CASE("RocksCatalog says ResourceExhausted while its disk is full, and goes on when it no longer is") {
  const kvist::test::TempDir dir;
  REQUIRE(Live(dir, 11, {"", 0, 20, {}}) == 0);
  REQUIRE(Live(dir, 11, {"", 0, 300, "enospc=10"}) == 3);
  // What failed left gaps in the history, so only the catalog itself is checked.
  RocksCatalogOptions options;
  options.folder = dir / "ssd";
  const auto catalog = RocksCatalog::Open(options);
  REQUIRE(catalog.ok());
  CHECK((*catalog)->report().kind != OpenReport::kSetAside);
  const test::Loaded loaded = test::LoadNow(catalog->get());
  CHECK(loaded.report.status.ok());
  CHECK(test::ProgressOf(loaded.rows) == 320);
}

// What its life had told of each batch: 'a', or 'f' where it had failed.
std::string ToldIn(const kvist::test::TempDir& dir) {
  std::ifstream file(dir / "acks");
  return {std::istreambuf_iterator<char>(file), {}};
}

// The rows of those batches of which that was told.
test::Rows RowsOf(uint64_t seed, const std::string& told, std::string_view which) {
  test::Rows rows;
  for (uint64_t i = 0; i < told.size(); ++i) {
    if (which.find(told[i]) != std::string_view::npos) test::Apply(test::BatchOf(seed, i), &rows);
  }
  return rows;
}

// What failed was in the log and came back with the next opening: rows that led to places which were used again.
TEST_CASE("RocksCatalog takes back what its disk had no space to flush before anything later comes") {
  const kvist::test::TempDir dir;
  REQUIRE(Live(dir, 13, {"", 0, 200, "unflushed=30"}) == 3);  // the taking back finds no space, either, at first
  const std::string told = ToldIn(dir);
  REQUIRE(told.size() == 200);
  CHECK(told.find('f') != std::string::npos);
  RocksCatalogOptions options;
  options.folder = dir / "ssd";
  const auto catalog = RocksCatalog::Open(options);
  REQUIRE(catalog.ok());
  CHECK((test::LoadNow(catalog->get()).rows == RowsOf(13, told, "a")));  // without printing hundreds of rows
}

TEST_CASE("RocksCatalog that is killed before it has taken back what failed has that, or hasn't") {
  const kvist::test::TempDir dir;
  REQUIRE(Live(dir, 14, {"reopen: undo", 1, 200, "unflushed=30"}) == -SIGKILL);
  const std::string told = ToldIn(dir);
  CHECK(told.find('f') != std::string::npos);
  RocksCatalogOptions options;
  options.folder = dir / "ssd";
  const auto catalog = RocksCatalog::Open(options);
  REQUIRE(catalog.ok());
  CHECK((*catalog)->report().kind == OpenReport::kUnclean);
  const test::Rows rows = test::LoadNow(catalog->get()).rows;
  CHECK((rows == RowsOf(14, told, "a") || rows == RowsOf(14, told, "af")));
}

TEST_CASE("RocksCatalog refuses a store that another process has open") {
  const kvist::test::TempDir dir;
  RocksCatalogOptions options;
  options.folder = dir / "ssd";
  const auto catalog = RocksCatalog::Open(options);
  REQUIRE(catalog.ok());
  CHECK(Live(dir, 12, {"", 0, 5, {}}) == 1);
  CHECK(test::CommitNow(catalog->get(), test::BatchOf(12, 0)).ok());
  CHECK(test::LoadNow(catalog->get()).rows == test::RowsAfter(12, 1));
}

}  // namespace
}  // namespace kvist::ssd
