// Row 14 of the fault matrix: each kind of file of a catalog deleted, truncated, flipped, exchanged for an older copy, after a clean end
// and after a crash. It must open each time, and what it has then is all of it, or known to be lost.
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/ssd/catalog_stamp.h"
#include "storage/ssd/rocks_catalog.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/catalog_history.h"

namespace kvist::ssd {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSeed = 20;
constexpr uint64_t kOld = 400;     // batches in the older copy
constexpr uint64_t kLatest = 900;  // in what is damaged

RocksCatalogOptions In(const std::string& folder) {
  RocksCatalogOptions options;
  options.folder = folder;
  options.write_buffer = KiB(64);
  return options;
}

std::unique_ptr<RocksCatalog> Opened(const std::string& folder) {
  auto catalog = RocksCatalog::Open(In(folder));
  INFO(catalog.status());
  REQUIRE(catalog.ok());
  return *std::move(catalog);
}

// Of the history, with ballast, so that there are several tables.
CatalogBatch BatchAt(uint64_t i) {
  CatalogBatch batch = test::BatchOf(kSeed, i);
  batch.Put(PinRow{.space = 9, .name = absl::StrCat(i), .description = std::string(300, static_cast<char>(i))});
  return batch;
}

void Fill(RocksCatalog* catalog, uint64_t from, uint64_t to) {
  for (uint64_t i = from; i < to; ++i) REQUIRE(test::CommitNow(catalog, BatchAt(i)).ok());
}

test::Rows Expected(uint64_t batches) {
  test::Rows rows;
  for (uint64_t i = 0; i < batches; ++i) test::Apply(BatchAt(i), &rows);
  return rows;
}

void Copy(const std::string& from, const std::string& to) { fs::copy(from, to, fs::copy_options::recursive); }

// A catalog's files as they are at a clean end, and at a crash; each with an older copy, of an earlier run and of the same.
struct Images {
  kvist::test::TempDir dir;
  std::string old_run = dir / "old_run", same_run = dir / "same_run", crashed = dir / "crashed", clean = dir / "clean";

  Images() {
    const std::string live = dir / "live";
    {
      const auto catalog = Opened(live);
      Fill(catalog.get(), 0, kOld);
    }
    Copy(live, old_run);
    {
      const auto catalog = Opened(live);
      Fill(catalog.get(), kOld, kOld + 100);
      Copy(live, same_run);
      Fill(catalog.get(), kOld + 100, kLatest);
      Copy(live, crashed);  // nothing is being written: this is what kill -9 leaves
    }
    Copy(live, clean);
  }
};

std::string KindOfFile(const std::string& name) {
  if (absl::StrContains(name, ".sst")) return "SST";
  if (absl::StrContains(name, ".log")) return "WAL";
  if (absl::StartsWith(name, "MANIFEST")) return "MANIFEST";
  if (absl::StartsWith(name, "OPTIONS")) return "OPTIONS";
  return name;
}

std::vector<std::string> FilesOf(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), folder).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void Flip(const std::string& path, uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
  REQUIRE(file.good());
}

// All rows that were ever put.
std::set<std::pair<std::string, std::string>> EverPut() {
  std::set<std::pair<std::string, std::string>> put;
  for (uint64_t i = 0; i < kLatest; ++i) {
    const CatalogBatch batch = BatchAt(i);
    for (const CatalogBatch::Change& change : batch.list()) {
      if (!change.erase) put.emplace(change.row.key(), change.row.value());
    }
  }
  return put;
}

enum class Found {
  kAll,
  kOlder,       // a former state, after a crash
  kStale,       // former rows, of several states, after a crash
  kLostAtOpen,  // set aside
  kLostAtLoad,  // started over
};

// What a daemon finds in a damaged folder, having done what catalog.h asks of it.
Found Recover(const std::string& folder, bool was_clean) {
  const auto catalog = Opened(folder);
  const OpenReport& report = catalog->report();
  const test::Loaded loaded = test::LoadNow(catalog.get());
  Found found = Found::kAll;
  if (report.kind == OpenReport::kSetAside || report.kind == OpenReport::kNew) {
    CHECK(report.kind == OpenReport::kSetAside);
    CHECK_FALSE(report.message.empty());
    CHECK(loaded.report.status.ok());
    CHECK(loaded.rows.empty());
    CHECK(report.rebuild_pending);
    found = Found::kLostAtOpen;
  } else if (!loaded.report.status.ok()) {
    CHECK(absl::IsDataLoss(loaded.report.status));
    CHECK(test::StartOverNow(catalog.get()).ok());
    CHECK(test::LoadNow(catalog.get()).rows.empty());
    found = Found::kLostAtLoad;
  } else {
    CHECK(loaded.report.skipped == 0);
    const uint64_t batches = test::ProgressOf(loaded.rows);
    const bool whole = loaded.rows == Expected(batches);
    if (batches != kLatest || !whole) {
      // After a clean end nothing less than all will do. After a crash it may be what an older copy of that run would be: the segments
      // tell then (catalog_check.h), and who reads by a stale row finds that its place holds something else. But nothing is invented.
      CHECK(report.kind == OpenReport::kUnclean);
      CHECK_FALSE(was_clean);
      static const std::set<std::pair<std::string, std::string>> put = EverPut();
      const bool invented =
          std::any_of(loaded.rows.begin(), loaded.rows.end(), [](const auto& row) { return put.count(row) == 0; });
      CHECK_FALSE(invented);
      found = whole ? Found::kOlder : Found::kStale;
    }
  }
  CHECK(test::CommitNow(catalog.get(), test::BatchOf(1, 1)).ok());
  return found;
}

struct Damage {
  std::string name;
  std::function<void(const Images&, const std::string& folder, const std::string& file)> apply;
};

void PutBack(const std::string& copy, const std::string& folder, const std::string& file) {
  // The older copy's file of that name, or, where names are numbers, of that kind.
  std::string from = copy + "/" + file;
  if (!fs::exists(from)) {
    for (const std::string& other : FilesOf(copy)) {
      if (KindOfFile(fs::path(other).filename().string()) == KindOfFile(fs::path(file).filename().string()))
        from = copy + "/" + other;
    }
  }
  if (fs::exists(from)) fs::copy_file(from, folder + "/" + file, fs::copy_options::overwrite_existing);
}

// Where the records of one of RocksDB's logs, or lists of files, end: it lies in blocks of 32 KiB, and each record begins with a checksum
// of 4 bytes, its length in 2, and its type in 1.
std::vector<uint64_t> RecordEnds(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  constexpr uint64_t kBlock = 32 << 10, kHeader = 7;
  std::vector<uint64_t> ends;
  for (uint64_t at = 0; at + kHeader <= bytes.size();) {
    if (kBlock - at % kBlock < kHeader) {
      at += kBlock - at % kBlock;
      continue;
    }
    const uint64_t length = static_cast<uint8_t>(bytes[at + 4]) | static_cast<uint64_t>(static_cast<uint8_t>(bytes[at + 5]))
                                                                      << 8;
    if (length == 0 && bytes[at + 6] == 0) break;  // space that was taken in advance
    at += kHeader + length;
    ends.push_back(at);
  }
  return ends;
}

// Without its last `records`, to the byte, and with `more` of the first of them.
Damage Cut(size_t records, uint64_t more) {
  return {absl::StrCat("without its last ", records, " records, but for ", more, " bytes"),
          [=](const Images&, const std::string& to, const std::string& file) {
            const std::string path = to + "/" + file;
            const std::vector<uint64_t> ends = RecordEnds(path);
            const uint64_t end = records < ends.size() ? ends[ends.size() - 1 - records] : 0;
            fs::resize_file(path, std::min(end + more, fs::file_size(path)));
          }};
}

std::vector<Damage> Damages(const std::string& kind) {
  const auto in = [](const std::string& folder, const std::string& file) { return folder + "/" + file; };
  std::vector<Damage> all;
  all.push_back(
      {"deleted", [=](const Images&, const std::string& to, const std::string& file) { fs::remove(in(to, file)); }});
  for (const int percent : {0, 90}) {
    all.push_back(
        {absl::StrCat("truncated to ", percent, " %"), [=](const Images&, const std::string& to, const std::string& file) {
           const std::string path = in(to, file);
           fs::resize_file(path, fs::file_size(path) * static_cast<uint64_t>(percent) / 100);
         }});
  }
  for (const int percent : {0, 50, 99}) {
    all.push_back(
        {absl::StrCat("flipped at ", percent, " %"), [=](const Images&, const std::string& to, const std::string& file) {
           const std::string path = in(to, file);
           if (fs::file_size(path) > 0) Flip(path, (fs::file_size(path) - 1) * static_cast<uint64_t>(percent) / 100);
         }});
  }
  all.push_back(
      {"exchanged for that of an earlier run",
       [=](const Images& images, const std::string& to, const std::string& file) { PutBack(images.old_run, to, file); }});
  all.push_back(
      {"exchanged for that of earlier in this run",
       [=](const Images& images, const std::string& to, const std::string& file) { PutBack(images.same_run, to, file); }});
  all.push_back({"replaced by a folder", [=](const Images&, const std::string& to, const std::string& file) {
                   fs::remove(in(to, file));
                   fs::create_directory(in(to, file));
                 }});
  if (kind == "MANIFEST" || kind == "WAL") {
    for (const size_t records : {1, 2, 3, 5, 8, 13}) all.push_back(Cut(records, 0));
    for (const size_t records : {1, 2, 5}) all.push_back(Cut(records, 9));
  }
  return all;
}

TEST_CASE("RocksCatalog opens whatever happened to a file of it, with all rows or a known loss") {
  const Images images;
  std::map<std::string, std::map<Found, int>> tally;
  const kvist::test::TempDir dir;
  for (const bool clean : {true, false}) {
    const std::string& image = clean ? images.clean : images.crashed;
    for (const std::string& file : FilesOf(image)) {
      const std::string name = fs::path(file).filename().string();
      if (name == "catalog.lock" || absl::StartsWith(name, "LOG")) continue;  // nobody reads these
      for (const Damage& damage : Damages(KindOfFile(name))) {
        const std::string folder = dir / "ssd";
        fs::remove_all(folder);
        Copy(image, folder);
        damage.apply(images, folder, file);
        INFO((clean ? "clean, " : "crashed, ") << file << " " << damage.name);
        ++tally[KindOfFile(name)][Recover(folder, clean)];
      }
    }
  }
  // Each kind was there, and its damage was noticed.
  for (const char* kind : {"MANIFEST", "CURRENT", "WAL", "SST", "catalog.stamp"}) {
    INFO(kind);
    std::map<Found, int>& found = tally[kind];
    std::printf("%-14s all %3d, older %3d, stale %3d, lost at open %3d, lost at load %3d\n", kind, found[Found::kAll],
                found[Found::kOlder], found[Found::kStale], found[Found::kLostAtOpen], found[Found::kLostAtLoad]);
    CHECK(found[Found::kLostAtOpen] + found[Found::kLostAtLoad] > 0);
  }
}

TEST_CASE("RocksCatalog doesn't believe a whole older copy") {
  const Images images;
  const kvist::test::TempDir dir;
  const auto with = [&](const std::string& image, const std::string& catalog) {
    const std::string folder = dir / "ssd";
    fs::remove_all(folder);
    Copy(image, folder);
    fs::remove_all(folder + "/catalog");
    Copy(catalog + "/catalog", folder + "/catalog");
    return folder;
  };
  CHECK(Recover(with(images.clean, images.old_run), true) == Found::kLostAtOpen);
  CHECK(Recover(with(images.clean, images.same_run), true) == Found::kLostAtOpen);
  CHECK(Recover(with(images.clean, images.crashed), true) == Found::kAll);
  CHECK(Recover(with(images.crashed, images.old_run), false) == Found::kLostAtOpen);
  CHECK(Recover(with(images.crashed, images.same_run), false) == Found::kOlder);  // as after a crash then; the segments tell
}

TEST_CASE("RocksCatalog that is lost altogether says so") {
  const Images images;
  const kvist::test::TempDir dir;
  Copy(images.clean, dir / "a");
  fs::remove_all(dir / "a/catalog");
  CHECK(Recover(dir / "a", true) == Found::kLostAtOpen);
  Copy(images.clean, dir / "b");
  for (const auto& entry : fs::directory_iterator(dir / "b/catalog")) fs::remove(entry.path());
  CHECK(Recover(dir / "b", true) == Found::kLostAtOpen);
  Copy(images.clean, dir / "c");
  fs::remove_all(dir / "c/catalog");
  std::ofstream(dir / "c/catalog") << "a file";
  CHECK(Recover(dir / "c", true) == Found::kLostAtOpen);
  Copy(images.clean, dir / "d");
  fs::remove_all(dir / "d/catalog");
  fs::create_symlink("/nonexistent", dir / "d/catalog");
  CHECK(Recover(dir / "d", true) == Found::kLostAtOpen);
  // Nothing of it, not even the stamp: new, and the same is to be done.
  Copy(images.clean, dir / "e");
  fs::remove_all(dir / "e");
  CHECK(Opened(dir / "e")->report().rebuild_pending);
}

TEST_CASE("RocksCatalog keeps few of those that it moved aside, the newest") {
  const Images images;
  const kvist::test::TempDir dir;
  Copy(images.clean, dir / "ssd");
  for (uint32_t i = 1; i <= 5; ++i) {
    INFO(i);
    fs::remove(dir / "ssd/catalog/CURRENT");
    const auto catalog = Opened(dir / "ssd");
    CHECK(catalog->report().kind == OpenReport::kSetAside);
    CHECK(absl::StrContains(catalog->report().message, absl::StrCat("quarantine-", i)));
    CHECK(catalog->report().quarantined == std::min(i, 2u));
  }
}

TEST_CASE("a stamp knows its catalog") {
  const MetaRow meta{.rebuild_pending = false, .format = 1, .store = {}, .incarnation = 7, .generation = 3, .commits = 50};
  const auto stamp = [&](uint64_t incarnation, uint64_t generation, uint64_t commits, bool clean) {
    CatalogStamp s{};
    s.clean = clean ? 1 : 0;
    s.incarnation = incarnation;
    s.generation = generation;
    s.commits = commits;
    return s;
  };
  CHECK(AgeOf(meta, stamp(7, 3, 50, true)).kind == CatalogAge::kClean);
  CHECK(AgeOf(meta, stamp(7, 3, 49, true)).kind == CatalogAge::kWrong);  // more than at the clean end: of another future
  CHECK(AgeOf(meta, stamp(7, 3, 51, true)).kind == CatalogAge::kWrong);
  CHECK(AgeOf(meta, stamp(7, 3, 40, false)).kind == CatalogAge::kUnclean);
  CHECK(AgeOf(meta, stamp(7, 3, 51, false)).kind == CatalogAge::kWrong);
  CHECK(AgeOf(meta, stamp(7, 2, 50, true)).kind == CatalogAge::kClean);  // a crash between the two halves of an open
  CHECK(AgeOf(meta, stamp(7, 1, 50, true)).kind == CatalogAge::kWrong);
  CHECK(AgeOf(meta, stamp(7, 4, 50, true)).kind == CatalogAge::kWrong);  // an older copy
  CHECK(AgeOf(meta, stamp(8, 3, 50, true)).kind == CatalogAge::kWrong);
  CHECK(AgeOf(meta, std::nullopt).kind == CatalogAge::kWrong);
  CatalogStamp foreign = stamp(7, 3, 50, true);
  foreign.store.bytes[0] = 1;
  CHECK(AgeOf(meta, foreign).kind == CatalogAge::kWrong);
  MetaRow fresh = meta;
  fresh.commits = 0;
  fresh.rebuild_pending = true;
  CHECK(AgeOf(fresh, std::nullopt).kind == CatalogAge::kUnclean);
}

}  // namespace
}  // namespace kvist::ssd
