// fsck over real directories: it finds what was damaged, mends what it can, and leaves a sound store as it was.
#include "storage/ssd/fsck.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "storage/ssd/segment_header.h"
#include "tests/support/files_under.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/store_world.h"

namespace kvist::ssd::test {
namespace {

namespace fs = std::filesystem;
using kvist::test::FilesUnder;

constexpr uint64_t kChunks = 40;  // of three shards each

// A store of two devices.
class Patient {
 public:
  StoreOptions options() const {
    StoreOptions options;
    options.directories = {dir_ / "a", dir_ / "b"};
    options.segment = KiB(512);
    options.capacity = options.segment * 32;
    return options;
  }
  // Runs a daemon's life with chunks 0 to kChunks - 1, of two spaces; `inside` is called before it ends.
  template <class Inside>
  void Live(Inside inside) {
    StoreWorld world;
    world.Open(options());
    world.StartNow();
    world.store->OpenSpace(DigestOf<SpaceDigest>(1), "one");
    world.store->OpenSpace(DigestOf<SpaceDigest>(2), "two");
    for (uint64_t n = 0; n < kChunks; ++n) REQUIRE(world.WriteNow(n % 2, n).ok());
    inside(world);
  }
  // How many chunks a daemon finds, all of them whole; `rebuilt`: whether it had to read the headers.
  uint64_t Found(bool rebuilt = false) const {
    StoreWorld world;
    world.Open(options());
    const Recovery& recovery = world.StartNow();
    CHECK(recovery.status.ok());
    CHECK(recovery.rebuilt == rebuilt);
    for (const auto& [name, chunk] : world.All()) {
      // A rebuild numbers spaces as it meets them: under another number the world expects other bytes, and the store has checked them.
      const bool renumbered = name.first != name.second % 2;
      CHECK(world.found_spaces.at(name.first).description == (name.second % 2 == 0 ? "one" : "two"));
      CHECK((rebuilt || !renumbered));
      const absl::Status read = world.ReadNow(name.first, name.second);
      CHECK((renumbered ? absl::IsInternal(read) : read.ok()));
    }
    return recovery.chunks;
  }
  FsckReport Check(bool repair = false) const {
    FsckOptions how;
    how.directories = options().directories;
    how.repair = repair;
    const absl::StatusOr<FsckReport> report = Fsck(how);
    INFO(report.status());
    REQUIRE(report.ok());
    return *report;
  }
  // Flips a bit of what lies at the place.
  void Flip(Place place, uint64_t offset) const {
    std::fstream file(dir_ / (DeviceOf(place.segment) == 0 ? "a/" : "b/") + SegmentFileName(place.segment),
                      std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(OffsetOf(place).value + offset);
    file.seekg(at);
    const int was = file.get();
    file.seekp(at);
    file.put(static_cast<char>(was ^ 4));
    REQUIRE(file.good());
  }
  const kvist::test::TempDir& dir() const { return dir_; }

 private:
  const kvist::test::TempDir dir_;
};

Place PlaceOf(StoreWorld& world, uint64_t n, size_t shard) { return world.All().at({n % 2, n}).places[shard]; }

TEST_CASE("fsck finds a store sound, and changes nothing of it") {
  Patient patient;
  patient.Live([](StoreWorld&) {});
  const auto before = FilesUnder(patient.dir().path());
  const FsckReport report = patient.Check();
  CHECK(FilesUnder(patient.dir().path()) == before);
  CHECK(report.sound());
  CHECK_FALSE(report.unclean);
  CHECK(report.segment_bytes == KiB(512));
  CHECK(report.catalog.rows == kChunks);
  CHECK(report.catalog.good == kChunks);
  CHECK(report.catalog.unlisted == 0);
  CHECK(report.records >= 3 * kChunks + 2);  // and the spaces'
  CHECK(report.bad_records == 0);
  CHECK(report.gaps == 0);
  CHECK(patient.Check(/*repair=*/true).repaired);
  CHECK(patient.Found() == kChunks);
}

TEST_CASE("fsck leaves a store alone that a daemon has open, and finds none where none is") {
  Patient patient;
  patient.Live([&](StoreWorld&) {
    for (const bool repair : {false, true}) {
      const absl::Status status =
          Fsck({.directories = patient.options().directories, .repair = repair, .progress = {}}).status();
      CHECK(absl::IsFailedPrecondition(status));
    }
  });
  const kvist::test::TempDir empty;
  CHECK(absl::IsNotFound(Fsck({.directories = {empty.path()}, .repair = false, .progress = {}}).status()));
  CHECK(absl::IsNotFound(Fsck({.directories = {empty / "not"}, .repair = true, .progress = {}}).status()));
  const absl::Status turned =
      Fsck({.directories = {patient.dir() / "b", patient.dir() / "a"}, .repair = false, .progress = {}}).status();
  CHECK(absl::IsFailedPrecondition(turned));
  FsckOptions impatient{.directories = patient.options().directories, .repair = true, .progress = {}};
  impatient.progress = [](const FsckProgress& now) { return now.segments_read < 1; };
  CHECK(absl::IsCancelled(Fsck(impatient).status()));
  CHECK(patient.Found() == kChunks);
}

TEST_CASE("fsck finds every chunk whose record was damaged, and no other; repaired, the rest is sound") {
  const bool header = GENERATE(false, true);
  INFO((header ? "headers" : "payloads"));
  Patient patient;
  std::vector<Place> damaged;
  patient.Live([&](StoreWorld& world) {
    for (const uint64_t n : {3, 8, 21}) damaged.push_back(PlaceOf(world, n, n % 3));
  });
  for (const Place place : damaged) patient.Flip(place, header ? 40 : kHeaderBytes.value + 5000);
  const FsckReport report = patient.Check();
  CHECK_FALSE(report.sound());
  CHECK(report.catalog.rows == kChunks);
  CHECK(report.catalog.broken == damaged.size());
  CHECK(report.catalog.misplaced == 0);
  if (header) {
    CHECK(report.gaps == damaged.size());
  } else {
    CHECK(report.bad_records == damaged.size());
    REQUIRE(report.examples.size() == damaged.size());
    for (const BadRecord& bad : report.examples) {
      CHECK(bad.wanted);
      CHECK(std::find(damaged.begin(), damaged.end(), bad.place) != damaged.end());
      CHECK(fs::exists(bad.file));
    }
  }
  const FsckReport repair = patient.Check(/*repair=*/true);
  CHECK(repair.repaired);
  CHECK(repair.catalog.broken == damaged.size());
  const FsckReport after = patient.Check();
  CHECK(after.sound());
  CHECK(after.catalog.rows == kChunks - damaged.size());
  CHECK(patient.Found() == kChunks - damaged.size());
}

TEST_CASE("fsck lets a lost catalog be rebuilt, and makes a lost file of the store") {
  Patient patient;
  patient.Live([](StoreWorld&) {});
  fs::remove(patient.dir() / "a/catalog/CURRENT");
  fs::remove(patient.dir() / "b/store");
  const auto before = FilesUnder(patient.dir().path());
  const FsckReport report = patient.Check();
  CHECK(FilesUnder(patient.dir().path()) == before);
  CHECK_FALSE(report.sound());
  CHECK(absl::StrContains(report.catalog_trouble, "CURRENT"));
  CHECK(absl::EndsWith(report.store_file, "/b"));
  CHECK(patient.Check(/*repair=*/true).repaired);
  const FsckReport after = patient.Check();
  CHECK(after.sound());
  CHECK(after.rebuild_pending);
  CHECK(patient.Found(/*rebuilt=*/true) == kChunks);
  CHECK(patient.Check().catalog.good == kChunks);
}

TEST_CASE("fsck of a store whose second disk was replaced says so; repaired, it goes on without what was there") {
  Patient patient;
  patient.Live([](StoreWorld&) {});
  fs::remove_all(patient.dir() / "b");
  fs::create_directory(patient.dir() / "b");
  const FsckReport report = patient.Check();
  CHECK_FALSE(report.sound());
  CHECK(report.segments_missing > 0);
  CHECK(report.catalog.broken == kChunks);  // each has a shard there
  CHECK(patient.Check(/*repair=*/true).repaired);
  const FsckReport after = patient.Check();
  CHECK(after.sound());
  CHECK(after.segments_missing == 0);
  CHECK(patient.Found() == 0);
  patient.Live([](StoreWorld&) {});
  CHECK(patient.Found() == kChunks);
}

TEST_CASE(
    "fsck finds that a catalog is an older copy by a clear that it doesn't know, and repairs that; a start finds it, too") {
  Patient patient, copy;
  bool clearing = false;
  Place early;
  uint64_t expected = kChunks / 2;
  {
    StoreWorld world;
    StoreOptions options = patient.options();
    options.before_step = [&](std::string_view step) {
      // Its record is on the disk, and the catalog is of before: of an older copy, say.
      if (step == "clear: row first") fs::copy(patient.dir().path(), copy.dir().path(), fs::copy_options::recursive);
      if (step != "clear: row" || clearing) return;
      clearing = true;
      for (const std::string device : {"a", "b"}) {
        for (const auto& entry : fs::directory_iterator(patient.dir() / device)) {
          const std::string name = entry.path().filename().string();
          if (absl::StartsWith(name, "segment-"))
            fs::copy(entry.path(), copy.dir() / device + "/" + name, fs::copy_options::overwrite_existing);
        }
      }
    };
    world.Open(options);
    world.StartNow();
    world.store->OpenSpace(DigestOf<SpaceDigest>(1), "one");
    world.store->OpenSpace(DigestOf<SpaceDigest>(2), "two");
    for (uint64_t n = 0; n < kChunks; ++n) REQUIRE(world.WriteNow(n % 2, n).ok());
    early = PlaceOf(world, 0, 0);
    REQUIRE(world.ClearNow(1).ok());
  }
  REQUIRE(clearing);
  const auto before = FilesUnder(copy.dir().path());
  const FsckReport report = copy.Check();
  CHECK(FilesUnder(copy.dir().path()) == before);
  CHECK_FALSE(report.sound());
  CHECK(report.catalog.sound());
  CHECK(report.unclean);
  CHECK(report.clears_missing == 1);
  CHECK(report.catalog.rows == kChunks / 2);
  SECTION("as it is") {}
  SECTION("repaired") {
    CHECK(copy.Check(/*repair=*/true).repaired);
    CHECK(copy.Check().sound());
    CHECK(copy.Check().unclean);
  }
  SECTION("a repair that was ended") {
    FsckOptions impatient{.directories = copy.options().directories, .repair = true, .progress = {}};
    impatient.progress = [](const FsckProgress&) { return false; };
    CHECK(absl::IsCancelled(Fsck(impatient).status()));
    CHECK(copy.Check().unclean);
  }
  SECTION("a repair without the segment of the clear") {
    // Segments that can't be opened are left alone.
    copy.Flip(early, kHeaderBytes.value + 100);  // so that there is something to repair
    std::vector<fs::path> away;
    for (const std::string device : {"a", "b"}) {
      std::vector<fs::path> segments;
      for (const auto& entry : fs::directory_iterator(copy.dir() / device)) {
        if (absl::StartsWith(entry.path().filename().string(), "segment-")) segments.push_back(entry.path());
      }
      std::sort(segments.begin(), segments.end());
      REQUIRE(segments.size() >= 3);
      away.insert(away.end(), segments.end() - 2, segments.end());  // what was written last
    }
    for (const fs::path& segment : away) fs::rename(segment, segment.string() + ".away");
    const FsckReport partly = copy.Check(/*repair=*/true);
    CHECK_FALSE(partly.sound());
    CHECK(partly.catalog.broken == 1);
    CHECK(partly.catalog.unread > 0);
    CHECK(partly.clears_missing == 0);
    for (const fs::path& segment : away) fs::rename(segment.string() + ".away", segment);
    CHECK(copy.Check().clears_missing == 1);
    expected = kChunks / 2 - 1;
  }
  CHECK(copy.Found() == expected);
}

}  // namespace
}  // namespace kvist::ssd::test
