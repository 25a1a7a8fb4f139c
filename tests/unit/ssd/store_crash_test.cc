// Crashes of a process that works on a store, between any two of its steps: what was called durable is there, nothing that was cleared.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/campaign.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/store_victim.h"

namespace kvist::ssd::test {
namespace {

namespace fs = std::filesystem;

// What its owner knew, as the log outside of it says.
struct Known {
  std::set<uint64_t> durable;    // must be there
  std::set<uint64_t> cleared;    // must not
  std::set<uint64_t> uncertain;  // freed, or being cleared when it died
};

Known Read(const std::string& log) {
  Known known;
  std::ifstream lines(log);
  bool clearing = false;
  std::string word;
  while (lines >> word) {
    uint64_t n = 0;
    if (word == "w" || word == "f") lines >> n;
    if (word == "w") (clearing ? known.uncertain : known.durable).insert(n);
    if (word == "f" && known.durable.erase(n) > 0) known.uncertain.insert(n);
    if (word == "C") {
      known.uncertain.insert(known.durable.begin(), known.durable.end());
      known.durable.clear();
      clearing = true;
    }
    if (word == "c") {
      known.cleared.insert(known.uncertain.begin(), known.uncertain.end());
      known.uncertain.clear();
      clearing = false;
    }
  }
  for (const uint64_t n : known.durable) known.uncertain.erase(n);
  return known;
}

void LoseCatalog(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (absl::StartsWith(entry.path().filename().string(), "catalog")) fs::remove_all(entry.path());
  }
}

// The last record of the catalog's log is torn, as by a disk that has lost it: RocksDB takes that for one that was never written.
bool TearLog(const std::string& catalog, uint64_t bytes) {
  fs::path last;
  for (const auto& entry : fs::directory_iterator(catalog)) {
    if (entry.path().extension() == ".log") last = std::max(last, entry.path());
  }
  if (last.empty() || fs::file_size(last) <= bytes) return false;
  fs::resize_file(last, fs::file_size(last) - bytes);
  return true;
}

TEST_CASE("Store has what it called durable, and nothing that was cleared, after kill -9 between any two steps") {
  static const std::vector<std::string> kSteps = {
      "segment: row",  "segment: header",  "chunk: data",   "chunk: row",   "chunk: written",  "free: erase",
      "segment: free", "segment: release", "clear: record", "clear: row",   "clear: done",     "commit: write",
      "commit: done",  "open: database",   "open: stamp",   "close: stamp", "recovery: finish"};
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  const int cycles = kvist::test::Campaign("KVIST_STORE_CRASHES", 25, 500);
  const kvist::test::TempDir dir;
  uint64_t first = 1, acknowledged = 0, read_back = 0, reclaimed = 0, torn = 0, adopted = 0;
  std::map<std::string, int> kills;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    const std::string& step = kSteps[random() % kSteps.size()];
    const bool once =
        absl::StartsWith(step, "open") || absl::StartsWith(step, "close") || absl::StartsWith(step, "recovery");
    const long nth = once                              ? 1
                     : absl::StartsWith(step, "clear") ? 1 + static_cast<long>(random() % 3)
                                                       : 1 + static_cast<long>(random() % 40);
    const bool lose = random() % 4 == 0;
    INFO("seed " << seed << " cycle " << cycle << ": dies before " << nth << ". " << step << ", first " << first
                 << (lose ? ", catalog lost" : ""));
    std::vector<std::string> words = {KVIST_STORE_VICTIM, dir.path(),          dir / "log",       step,
                                      absl::StrCat(nth),  absl::StrCat(first), absl::StrCat(200u)};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int end = kvist::test::InChild([&] {
      ::execv(argv[0], argv.data());
      return 98;
    });
    INFO("ended with " << end);
    REQUIRE((end == 0 || end == -SIGKILL));
    if (end != 0) ++kills[step.substr(0, step.find(':'))];
    first += 200;
    if (lose) LoseCatalog(dir / "a");
    const bool tear = !lose && end != 0 && random() % 2 == 0 && fs::exists(dir / "a/catalog");
    if (tear && TearLog(dir / "a/catalog", 1 + random() % 30)) ++torn;

    const Known known = Read(dir / "log");
    StoreWorld world({.shards = 2, .gives_back = false});
    world.Open(VictimOptions(dir.path()));
    const Recovery& recovery = world.StartNow();
    CHECK(recovery.status.ok());
    CHECK(recovery.skipped == 0);
    CHECK(recovery.rebuilt == (lose || recovery.rebuilt));
    if (!lose && cycle > 0) CHECK((recovery.message.empty() || recovery.rebuilt));
    adopted += recovery.adopted;
    const auto found = world.All();
    for (const uint64_t n : known.durable) {
      const bool there = found.contains({0, n});
      INFO("chunk " << n);
      CHECK(there);
    }
    for (const auto& [name, chunk] : found) {
      INFO("chunk " << name.second);
      CHECK_FALSE(known.cleared.contains(name.second));
      CHECK(world.ReadNow(0, name.second) == absl::OkStatus());
      ++read_back;
    }
    acknowledged += known.durable.size();
    reclaimed = known.uncertain.size() + known.cleared.size();
  }
  std::printf(
      "store: %d cycles, %lu times a durable chunk was looked for, %lu read back, %lu reclaimed or cleared; %lu torn logs, "
      "%lu "
      "chunks found beside their catalog; kills:",
      cycles, acknowledged, read_back, reclaimed, torn, adopted);
  for (const auto& [step, count] : kills) std::printf(" %s %d", step.c_str(), count);
  std::printf("\n");
  CHECK(kills["chunk"] + kills["segment"] + kills["clear"] + kills["free"] > cycles / 4);
  CHECK(acknowledged > static_cast<uint64_t>(cycles));
}

}  // namespace
}  // namespace kvist::ssd::test
