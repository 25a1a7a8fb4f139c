// A store over real directories: what was called durable is there again, and nothing that was cleared.
#include "storage/ssd/store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"
#include "storage/ssd/rocks_catalog.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/store_world.h"

namespace kvist::ssd::test {
namespace {

namespace fs = std::filesystem;

StoreOptions In(const kvist::test::TempDir& dir, uint64_t segments = 32, uint32_t directories = 2) {
  StoreOptions options;
  for (uint32_t i = 0; i < directories; ++i) options.directories.push_back(dir / std::string(1, static_cast<char>('a' + i)));
  options.segment = KiB(512);
  options.capacity = options.segment * segments;
  return options;
}

SpaceDigest SpaceNamed(uint64_t n) { return DigestOf<SpaceDigest>(9000 + n); }

// All that the owner knows is there, to the byte.
void CheckAll(StoreWorld* world) {
  for (const auto& [name, chunk] : world->All()) {
    INFO("space " << name.first << " chunk " << name.second);
    const absl::Status read = world->ReadNow(name.first, name.second);
    // It may have been wanted back meanwhile, and lie elsewhere or nowhere.
    const auto now = world->All();
    const auto it = now.find(name);
    if (it != now.end() && it->second.places == chunk.places) CHECK(read == absl::OkStatus());
  }
}

PinChange Pinned(const std::string& name, const std::string& words) {
  return {{.space = 0, .name = name, .description = words}};
}
PinChange Over(const std::string& name) { return {{.space = 0, .name = name, .description = {}}, /*ended=*/true}; }

void NotePinsNow(StoreWorld* world, std::vector<PinChange> changes) {
  world->store->NotePins(std::move(changes));
  absl::Notification durable;
  absl::Status kept;
  world->store->SettlePins([&](absl::Status status) {
    kept = std::move(status);
    durable.Notify();
  });
  durable.WaitForNotification();
  REQUIRE(kept == absl::OkStatus());
}

TEST_CASE("Store tells of pins as they were noted last, behind all chunks") {
  const kvist::test::TempDir dir;
  for (int life = 0; life < 3; ++life) {
    StoreWorld world;
    world.Open(In(dir));
    world.StartNow();
    std::vector<PinRow> expected;
    if (life > 0) expected = {Pinned("a", absl::StrCat(life - 1)).row, Pinned("c", "").row};
    CHECK(world.Pins() == expected);
    world.store->OpenSpace(SpaceNamed(0), "a space");
    NotePinsNow(&world, {Pinned("a", "x"), Pinned("b", "x"), Pinned("c", ""), Pinned("d", "x")});
    NotePinsNow(&world, {Over("d")});
    NotePinsNow(&world, {Pinned("a", absl::StrCat(life)), Over("b")});
  }
}

TEST_CASE("Store has what it called durable, at once and after a restart") {
  const kvist::test::TempDir dir;
  {
    StoreWorld world;
    world.Open(In(dir));
    const Recovery& recovery = world.StartNow();
    CHECK(recovery.status.ok());
    CHECK(recovery.chunks == 0);
    CHECK(world.store->OpenSpace(SpaceNamed(0), "the first") == 0);
    CHECK(world.store->OpenSpace(SpaceNamed(1), "the second") == 1);
    CHECK(world.store->OpenSpace(SpaceNamed(0), "the first") == 0);
    for (uint64_t n = 0; n < 40; ++n) CHECK(world.WriteNow(n % 2, n) == absl::OkStatus());
    CheckAll(&world);
    for (uint64_t n = 0; n < 10; ++n) world.FreeNow(n % 2, n);
    CHECK(world.writable());
    const Store::Status status = world.store->status();
    CHECK(status.devices.size() == 2);
    CHECK(status.devices[0].records_written == 80);  // two of three shards
    CHECK(status.devices[1].records_written == 40);
    CHECK_FALSE(status.recovering);
  }
  StoreWorld world;
  world.Open(In(dir));
  // Beside the load: a space that it had keeps its number.
  CHECK(world.store->OpenSpace(SpaceNamed(1), "the second") == 1);
  CHECK(world.store->OpenSpace(SpaceNamed(2), "the third") == 2);
  const Recovery& recovery = world.StartNow();
  CHECK(recovery.status.ok());
  CHECK_FALSE(recovery.rebuilt);
  CHECK(recovery.message.empty());
  CHECK(recovery.chunks == 30);
  CHECK(recovery.skipped == 0);
  CHECK(world.count() == 30);
  CHECK(world.found_spaces.at(1).description == "the second");
  CheckAll(&world);
  CHECK(world.WriteNow(2, 77) == absl::OkStatus());
  CheckAll(&world);
}

TEST_CASE("Store whose catalog is lost is rebuilt from its records") {
  const kvist::test::TempDir dir;
  const bool whole = GENERATE(true, false);
  {
    StoreWorld world;
    world.Open(In(dir));
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "the first");
    world.store->OpenSpace(SpaceNamed(1), "the second");
    for (uint64_t n = 0; n < 60; ++n) REQUIRE(world.WriteNow(n % 2, n) == absl::OkStatus());
  }
  if (whole) {
    for (const auto& entry : fs::directory_iterator(dir / "a")) {
      if (absl::StartsWith(entry.path().filename().string(), "catalog")) fs::remove_all(entry.path());
    }
  } else {
    fs::remove(dir / "a/catalog/CURRENT");
  }
  StoreWorld world;
  world.Open(In(dir));
  const uint32_t second = world.store->OpenSpace(SpaceNamed(1), "the second");
  const Recovery& recovery = world.StartNow();
  CHECK(recovery.status.ok());
  CHECK(recovery.rebuilt);
  CHECK(recovery.message.empty() == whole);
  CHECK(recovery.chunks == 60);
  CHECK(second == 0);
  CHECK(world.found_spaces.at(second).description == "the second");
  // Their numbers are others now: what was the first space's is the second's.
  size_t good = 0;
  for (const auto& [name, chunk] : world.All()) {
    const uint32_t was = world.found_spaces.at(name.first).description == "the second" ? 1 : 0;
    CHECK(name.second % 2 == was);
    good += world.ReadNow(name.first, name.second).code() != absl::StatusCode::kDataLoss;
  }
  CHECK(good == 60);
  world.Close();
  StoreWorld again;  // the rebuilt catalog is one
  again.Open(In(dir));
  const Recovery& next = again.StartNow();
  CHECK_FALSE(next.rebuilt);
  CHECK(next.chunks == 60);
}

// A disk that gives nothing while `refuses`, or doesn't do another thing, by an errno.
class RefusingDevice final : public Device {
 public:
  RefusingDevice(std::unique_ptr<Device> device, const std::atomic<bool>* refuses, Io::Kind kind = Io::Kind::kRead,
                 int error = EIO)
      : Device(device->report()), device_(std::move(device)), refuses_(*refuses), kind_(kind), error_(error) {}
  void Submit(const Io& io) override {
    if (io.kind != kind_ || !refuses_) return device_->Submit(io);
    refused_.push_back({io.tag, error_});
  }
  void Kick() override { device_->Kick(); }
  void Wait(absl::Time until, std::vector<Completion>* ended) override {
    device_->Wait(refused_.empty() ? until : absl::InfinitePast(), ended);
    ended->insert(ended->end(), refused_.begin(), refused_.end());
    refused_.clear();
  }
  void Wake() override { device_->Wake(); }
  uint32_t depth() const override { return device_->depth(); }
  void Remove(uint32_t segment) override { device_->Remove(segment); }
  absl::Status Register(std::span<std::byte> piece) override { return device_->Register(piece); }

 private:
  const std::unique_ptr<Device> device_;
  const std::atomic<bool>& refuses_;
  const Io::Kind kind_;
  const int error_;
  std::vector<Completion> refused_;
};

Bytes LiveIn(const Store& store) {
  Bytes live{};
  for (const Store::DeviceRow& device : store.status().devices) live += device.live;
  return live;
}

TEST_CASE(
    "Store has chunks in the form in which they were written last, also after restarts with its catalog and without it") {
  const kvist::test::TempDir dir;
  const Bytes raw = StoreWorld::kShape.payload();
  {
    StoreWorld world;
    world.Open(In(dir));
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "a space");
    for (uint64_t n = 0; n < 12; ++n) REQUIRE(world.WriteNow(0, n) == absl::OkStatus());
    const Bytes before = LiveIn(*world.store);
    world.Encode(Codec{3}, Bytes{9001});
    for (uint64_t n = 0; n < 12; n += 2) REQUIRE(world.WriteNow(0, n, 1) == absl::OkStatus());
    CheckAll(&world);
    for (int waits = 0; LiveIn(*world.store) >= before && waits < 1000; ++waits) absl::SleepFor(absl::Milliseconds(5));
    CHECK(LiveIn(*world.store) < before);
    // Encoded another way, and not at all any more.
    world.Encode(Codec{5}, Bytes{5000});
    REQUIRE(world.WriteNow(0, 4, 1) == absl::OkStatus());
    world.Encode(Codec::kRaw, Bytes{});
    REQUIRE(world.WriteNow(0, 8, 1) == absl::OkStatus());
    CheckAll(&world);
    // It must save something.
    world.Encode(Codec{3}, raw);
    CHECK(world.WriteNow(0, 1, 1).code() == absl::StatusCode::kInvalidArgument);
    CHECK(world.ReadNow(0, 1) == absl::OkStatus());
  }
  const bool loses_catalog = GENERATE(false, true);
  if (loses_catalog) fs::remove(dir / "a/catalog/CURRENT");
  StoreWorld world;
  world.Open(In(dir));
  CHECK(world.StartNow().rebuilt == loses_catalog);
  CHECK(world.count() == 12);
  CheckAll(&world);
  for (const auto& [name, chunk] : world.All()) {
    const uint64_t n = name.second;
    CHECK(static_cast<int>(chunk.shape.codec) == (n == 4 ? 5 : n % 2 == 0 && n != 8 ? 3 : 0));
  }
  world.FreeNow(0, 2);
  CHECK(world.WriteNow(0, 2) == absl::OkStatus());
  CheckAll(&world);
}

TEST_CASE("Store keeps the rows of what couldn't be read, until it is written again, hidden, or its room is wanted") {
  const kvist::test::TempDir dir;
  std::atomic<bool> refuses = false;
  StoreOptions options = In(dir);
  options.open_device = [&](const DeviceOptions& of) -> absl::StatusOr<std::unique_ptr<Device>> {
    KVIST_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(of));
    return std::make_unique<RefusingDevice>(std::move(device), &refuses);
  };
  {
    StoreWorld world;
    world.Open(options);
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "a space");
    world.store->OpenSpace(SpaceNamed(1), "another one");
    for (uint64_t n = 0; n < 20; ++n) REQUIRE(world.WriteNow(n % 2, n) == absl::OkStatus());
    refuses = true;
    for (uint64_t n = 0; n < 20; ++n) {
      CHECK(absl::IsUnavailable(world.ReadNow(n % 2, n)));
      world.LeaveNow(n % 2, n);
    }
    CHECK(world.count() == 0);
  }
  refuses = false;
  {
    StoreWorld world;
    world.Open(options);
    CHECK(world.StartNow().chunks == 20);
    CheckAll(&world);
    const Bytes live = LiveIn(*world.store);
    for (uint64_t n = 0; n < 20; ++n) world.LeaveNow(n % 2, n);
    for (uint64_t n = 0; n < 5; ++n) REQUIRE(world.WriteNow(n % 2, n, 1) == absl::OkStatus());
    std::optional<absl::Status> hidden;
    world.store->Hide(1, {}, [&](const absl::Status& status) {
      const absl::MutexLock lock(&world.mutex);
      hidden = status;
      world.changed.SignalAll();
    });
    {
      const absl::MutexLock lock(&world.mutex);
      while (!hidden.has_value()) world.Wait();
    }
    CHECK(*hidden == absl::OkStatus());
    // Of the first space all is there, of the second what was written again; nothing twice.
    const absl::Time until = absl::Now() + absl::Seconds(20);  // devices tell a turn later
    while (LiveIn(*world.store) > live && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
    CHECK(LiveIn(*world.store) <= live);
  }
  {
    StoreWorld world;
    world.Open(options);
    CHECK(world.StartNow().chunks == 12);
    for (const auto& [name, chunk] : world.All()) CHECK((name.first == 0 || name.second < 5));
    CheckAll(&world);
    for (const auto& [name, chunk] : world.All()) world.LeaveNow(name.first, name.second);
    // Whatever room there is comes back.
    size_t written = 0;
    for (uint64_t n = 100; n < 600; ++n) written += world.WriteNow(0, n).ok();
    CHECK(written > 450);
    CHECK(world.wanted_back > 0);
  }
  StoreWorld world;
  world.Open(options);
  world.StartNow();
  for (const auto& [name, chunk] : world.All()) CHECK(name.second >= 100);
  CheckAll(&world);
}

TEST_CASE("Store leaves segments alone whose headers the disk refuses, and finds what lies there when it gives them") {
  const kvist::test::TempDir dir;
  std::set<std::pair<uint32_t, uint64_t>> there;  // in the first segment of the second directory
  const std::string file = dir / ("b/" + SegmentFileName(1)), aside = dir / "aside";
  {
    StoreWorld world;
    world.Open(In(dir));
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "a space");
    world.store->OpenSpace(SpaceNamed(1), "another one");
    for (uint64_t n = 0; n < 60; ++n) REQUIRE(world.WriteNow(n % 2, n) == absl::OkStatus());
    for (const auto& [name, chunk] : world.All()) {
      if (std::any_of(chunk.places.begin(), chunk.places.end(), [](Place place) { return place.segment == 1; }))
        there.insert(name);
    }
    REQUIRE(there.size() > 5);
    REQUIRE(there.size() < 55);
  }
  // A directory in the file's place: it can be opened, and not read.
  fs::rename(file, aside);
  fs::create_directory(file);
  const std::pair again = *there.begin(), hidden = *std::next(there.begin());
  {
    StoreWorld world;
    world.Open(In(dir));
    const Recovery& recovery = world.StartNow();
    CHECK(recovery.status.ok());
    CHECK_FALSE(recovery.rebuilt);
    CHECK(recovery.chunks == 60 - there.size());
    CHECK(recovery.skipped == there.size());
    CHECK(recovery.withheld == there.size());
    CHECK(absl::StrContains(recovery.message, "1 segments"));
    CheckAll(&world);
    CHECK(world.store->status().devices[1].fenced == 1);
    REQUIRE(world.WriteNow(again.first, again.second, 1) == absl::OkStatus());
    std::optional<absl::Status> done;
    world.store->Hide(hidden.first, {StoreWorld::IdOf(hidden.first, hidden.second)}, [&](const absl::Status& status) {
      const absl::MutexLock lock(&world.mutex);
      done = status;
      world.changed.SignalAll();
    });
    {
      const absl::MutexLock lock(&world.mutex);
      while (!done.has_value()) world.Wait();
    }
    CHECK(*done == absl::OkStatus());
  }
  fs::remove(file);
  fs::rename(aside, file);
  // A clear of single chunks hides all of its space that nobody could name.
  std::erase_if(there, [&](const auto& name) { return name.first == hidden.first && name != again; });
  StoreWorld world;
  world.versions_max = 2;
  world.Open(In(dir));
  CHECK(world.StartNow().message.empty());
  for (const auto& name : there) CHECK(world.All().contains(name));
  CHECK_FALSE(world.All().contains(hidden));
  CheckAll(&world);
}

TEST_CASE("Store that was refused the first file of a directory begins again") {
  const kvist::test::TempDir dir;
  std::atomic<bool> refuses = true;
  StoreOptions options = In(dir);
  options.open_device = [&](const DeviceOptions& of) -> absl::StatusOr<std::unique_ptr<Device>> {
    KVIST_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(of));
    return std::make_unique<RefusingDevice>(std::move(device), &refuses, Io::Kind::kAllocate, EACCES);
  };
  {
    StoreWorld world;
    world.Open(options);
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "a space");
    CHECK_FALSE(world.WriteNow(0, 1).ok());
  }
  refuses = false;
  StoreWorld world;
  world.Open(options);
  world.StartNow();
  CHECK(world.WriteNow(0, 2) == absl::OkStatus());
}

TEST_CASE("Store whose second directory isn't mounted doesn't begin, and has lost nothing when it is") {
  const kvist::test::TempDir dir;
  {
    StoreWorld world;
    world.Open(In(dir));
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "a space");
    for (uint64_t n = 0; n < 20; ++n) REQUIRE(world.WriteNow(0, n) == absl::OkStatus());
  }
  fs::rename(dir / "b", dir / "unmounted");
  for (int start = 0; start < 2; ++start) {
    StoreWorld world;
    const auto opened = Store::Open(In(dir), &world);
    REQUIRE(absl::IsFailedPrecondition(opened.status()));
    CHECK(absl::StrContains(opened.status().message(), "/b has none of the"));
    CHECK(absl::StrContains(opened.status().message(), "mounted"));
  }
  fs::remove_all(dir / "b");
  fs::rename(dir / "unmounted", dir / "b");
  StoreWorld world;
  world.Open(In(dir));
  CHECK(world.StartNow().chunks == 20);
  CheckAll(&world);
}

// What a crash leaves there now, when the disk loses the last bytes of the catalog's log besides.
void ImageWithTornLog(const kvist::test::TempDir& dir, const kvist::test::TempDir& image, uint64_t bytes) {
  fs::copy(dir.path(), image.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  fs::path log;
  for (const auto& entry : fs::directory_iterator(image / "a/catalog")) {
    if (entry.path().extension() == ".log") log = std::max(log, entry.path());
  }
  REQUIRE(fs::file_size(log) > bytes);
  fs::resize_file(log, fs::file_size(log) - bytes);
}

TEST_CASE("Store finds what was durable, and not what was cleared, though the catalog has lost the last that it was told") {
  const kvist::test::TempDir dir, image;
  const uint64_t bytes = GENERATE(1u, 7u, 40u);
  const bool clears = GENERATE(false, true);
  StoreWorld world;
  world.Open(In(dir));
  world.StartNow();
  const uint32_t space = world.store->OpenSpace(SpaceNamed(0), "a space");
  for (uint64_t n = 0; n < 12; ++n) REQUIRE(world.WriteNow(space, n) == absl::OkStatus());
  if (clears) {
    REQUIRE(world.ClearNow(space).ok());
    REQUIRE(world.WriteNow(space, 20) == absl::OkStatus());
    REQUIRE(world.ClearNow(std::nullopt).ok());
  }
  ImageWithTornLog(dir, image, bytes);
  StoreWorld after;
  after.Open(In(image));
  const Recovery recovery = after.StartNow();
  CHECK(recovery.status.ok());
  CHECK_FALSE(recovery.rebuilt);
  CHECK(recovery.chunks == (clears ? 0 : 12));
  CHECK(recovery.adopted == (clears ? 0 : 1));
  CheckAll(&after);
  after.Close();
  CHECK(after.store == nullptr);
  // The next start finds it in the catalog.
  StoreWorld again;
  again.Open(In(image));
  const Recovery known = again.StartNow();
  CHECK(known.chunks == recovery.chunks);
  CHECK(known.adopted == 0);
}

TEST_CASE("Store that is closed before it has looked for what its catalog lost finds it at the next start") {
  const kvist::test::TempDir dir, image;
  StoreWorld world;
  world.Open(In(dir));
  world.StartNow();
  const uint32_t space = world.store->OpenSpace(SpaceNamed(0), "a space");
  for (uint64_t n = 0; n < 12; ++n) REQUIRE(world.WriteNow(space, n) == absl::OkStatus());
  ImageWithTornLog(dir, image, 5);
  {
    StoreWorld hasty;
    hasty.Open(In(image));
  }
  StoreWorld after;
  after.Open(In(image));
  CHECK(after.StartNow().chunks == 12);
  CheckAll(&after);
}

TEST_CASE("Store that couldn't read all that its catalog may have lost looks again at the next start") {
  const kvist::test::TempDir dir, image;
  StoreWorld world;
  world.Open(In(dir));
  world.StartNow();
  const uint32_t space = world.store->OpenSpace(SpaceNamed(0), "a space");
  for (uint64_t n = 0; n < 12; ++n) REQUIRE(world.WriteNow(space, n) == absl::OkStatus());
  const Place lost = world.All().at({space, 11}).places[1];
  ImageWithTornLog(dir, image, 5);
  // A directory in the file's place: it can be opened, and not read.
  const std::string file =
      image / (std::string(1, static_cast<char>('a' + DeviceOf(lost.segment))) + "/" + SegmentFileName(lost.segment));
  fs::rename(file, image / "aside");
  fs::create_directory(file);
  {
    StoreWorld blind;
    blind.Open(In(image));
    CHECK(blind.StartNow().adopted == 0);
    REQUIRE(blind.WriteNow(space, 20) == absl::OkStatus());
  }
  fs::remove(file);
  fs::rename(image / "aside", file);
  StoreWorld after;
  after.Open(In(image));
  const Recovery& recovery = after.StartNow();
  CHECK(recovery.chunks == 13);
  CHECK(recovery.adopted == 1);
  CheckAll(&after);
}

// A disk that ends no write while `holds`.
class HoldingDevice final : public Device {
 public:
  HoldingDevice(std::unique_ptr<Device> device, const std::atomic<bool>* holds)
      : Device(device->report()), device_(std::move(device)), holds_(*holds) {}
  void Submit(const Io& io) override { io.kind == Io::Kind::kWrite&& holds_ ? held_.push_back(io) : device_->Submit(io); }
  void Kick() override { device_->Kick(); }
  void Wait(absl::Time until, std::vector<Completion>* ended) override {
    if (!holds_ && !held_.empty()) {
      for (const Io& io : std::exchange(held_, {})) device_->Submit(io);
      device_->Kick();
    }
    device_->Wait(held_.empty() ? until : std::min(until, MonotonicNow() + absl::Milliseconds(5)), ended);
  }
  void Wake() override { device_->Wake(); }
  uint32_t depth() const override { return device_->depth(); }
  void Remove(uint32_t segment) override { device_->Remove(segment); }
  absl::Status Register(std::span<std::byte> piece) override { return device_->Register(piece); }

 private:
  const std::unique_ptr<Device> device_;
  const std::atomic<bool>& holds_;
  std::vector<Io> held_;
};

TEST_CASE("a disk that ends no write doesn't hold up whoever hides a chunk, and what was hidden stays so") {
  const kvist::test::TempDir dir, image;
  std::atomic<bool> holds = false;
  StoreOptions options = In(dir);
  options.open_device = [&](const DeviceOptions& of) -> absl::StatusOr<std::unique_ptr<Device>> {
    KVIST_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(of));
    return std::make_unique<HoldingDevice>(std::move(device), &holds);
  };
  StoreWorld world;
  world.Open(options);
  world.StartNow();
  const uint32_t space = world.store->OpenSpace(SpaceNamed(0), "a space");
  for (uint64_t n = 0; n < 3; ++n) REQUIRE(world.WriteNow(space, n) == absl::OkStatus());
  holds = true;
  const uint64_t write = world.Begin(space, 20);
  world.store->Flush();
  absl::Notification hidden;
  absl::Status how;
  world.store->Hide(space, {StoreWorld::IdOf(space, 2)}, [&](absl::Status status) {
    how = std::move(status);
    hidden.Notify();
  });
  hidden.WaitForNotification();
  CHECK(how == absl::OkStatus());
  {
    const absl::MutexLock lock(&world.mutex);
    CHECK_FALSE(world.results.contains(write));
  }
  fs::copy(dir.path(), image.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  holds = false;
  CHECK(world.WaitFor(write) == absl::OkStatus());
  StoreWorld after;
  after.Open(In(image));
  CHECK(after.StartNow().chunks == 2);
  CHECK_FALSE(after.All().contains({space, 2}));
}

// A catalog of which a load, the nth, gives but some rows.
class TroubledCatalog final : public Catalog, private RowSink {
 public:
  struct Trouble {
    int load = 1;       // the store has two when it starts: what comes before the chunks, then all
    size_t chunks = 0;  // that it gives
    absl::Status status = absl::OkStatus();
    std::function<void()> before = {};        // it is told
    const std::atomic<bool>* full = nullptr;  // no commit finds space while it is so
  };
  TroubledCatalog(std::unique_ptr<Catalog> catalog, Trouble trouble)
      : catalog_(std::move(catalog)), trouble_(std::move(trouble)) {}
  const OpenReport& report() const override { return catalog_->report(); }
  CatalogStats stats() const override { return catalog_->stats(); }
  absl::Status Commit(CatalogBatch batch, Done done) override {
    if (trouble_.full == nullptr || !*trouble_.full) return catalog_->Commit(std::move(batch), std::move(done));
    done(absl::ResourceExhaustedError("full"));
    return absl::OkStatus();
  }
  void StartOver(std::string why, Done done) override { catalog_->StartOver(std::move(why), std::move(done)); }
  void EndUnclean() override { catalog_->EndUnclean(); }
  absl::Status Load(RowSink* sink) override {
    if (++loads_ != trouble_.load) return catalog_->Load(sink);
    sink_ = sink;
    return catalog_->Load(this);
  }

 private:
  bool Take(RowBatch rows) override {
    if (trouble_.chunks == 0) return false;
    rows.chunks.resize(std::min(rows.chunks.size(), trouble_.chunks));
    sink_->Take(std::move(rows));
    return false;
  }
  void Loaded(const LoadReport&) override {
    if (trouble_.before) trouble_.before();
    sink_->Loaded({trouble_.status});
  }

  const std::unique_ptr<Catalog> catalog_;
  const Trouble trouble_;
  int loads_ = 0;
  RowSink* sink_ = nullptr;
};

StoreOptions WithTrouble(StoreOptions options, const TroubledCatalog::Trouble& trouble) {
  options.catalog = [folder = options.directories[0], trouble]() -> std::unique_ptr<Catalog> {
    RocksCatalogOptions of;
    of.folder = folder;
    auto catalog = RocksCatalog::Open(std::move(of));
    REQUIRE(catalog.ok());
    return std::make_unique<TroubledCatalog>(*std::move(catalog), trouble);
  };
  return options;
}

TEST_CASE("Store tells of the uses that were noted lately, behind all chunks, and of none after a rebuild") {
  const kvist::test::TempDir dir;
  const StoreOptions options = In(dir);
  const auto note = [](StoreWorld* world, int32_t period, uint64_t n) {
    world->store->NoteUses({{period, Bytes{n}, {{0, 1, DigestOf<ChunkKey>(n)}}}});
  };
  using Told = std::vector<std::tuple<int32_t, uint64_t, ChunkKey>>;
  const auto told = [](StoreWorld* world) {
    Told all;
    for (const UsesNote& of : world->Uses()) {
      CHECK(of.chunks.size() == 1);
      for (const ChunkUse& use : of.chunks) {
        CHECK(std::pair(use.space, use.group) == std::pair(uint32_t{0}, uint16_t{1}));
        all.emplace_back(of.period, of.written.value, use.key);
      }
    }
    return all;
  };
  {
    StoreWorld world;
    world.Open(options);
    world.StartNow();
    CHECK(told(&world).empty());
    world.store->OpenSpace(SpaceNamed(0), "a space");
    REQUIRE(world.WriteNow(0, 1) == absl::OkStatus());
    for (int32_t period = 0; period < 4; ++period) note(&world, period, 1 + static_cast<uint64_t>(period));
  }
  {
    StoreWorld world;
    world.Open(options);
    note(&world, 0, 10);  // before it knows which period that is
    CHECK(world.StartNow().chunks == 1);
    CHECK(told(&world) ==
          Told{{-2, 2, DigestOf<ChunkKey>(2)}, {-1, 3, DigestOf<ChunkKey>(3)}, {0, 4, DigestOf<ChunkKey>(4)}});
    note(&world, 1, 11);
  }
  {
    StoreWorld world;
    world.Open(options);
    world.StartNow();
    CHECK(told(&world) == Told{{-2, 3, DigestOf<ChunkKey>(3)},
                               {-1, 4, DigestOf<ChunkKey>(4)},
                               {-1, 10, DigestOf<ChunkKey>(10)},
                               {0, 11, DigestOf<ChunkKey>(11)}});
  }
  {
    TroubledCatalog::Trouble trouble;
    trouble.load = 2;
    trouble.status = absl::DataLossError("checksum");
    StoreWorld world;
    world.Open(WithTrouble(options, trouble));
    const Recovery& recovery = world.StartNow();
    CHECK(recovery.rebuilt);
    CHECK(recovery.chunks == 1);
    CHECK(told(&world).empty());
    note(&world, 0, 20);
  }
  StoreWorld world;
  world.Open(options);
  CHECK_FALSE(world.StartNow().rebuilt);
  CHECK(told(&world) == Told{{0, 20, DigestOf<ChunkKey>(20)}});
}

TEST_CASE("Store whose catalog can't be read to its end is rebuilt from its records, and keeps what was written meanwhile") {
  const kvist::test::TempDir dir;
  const StoreOptions options = In(dir);
  {
    StoreWorld world;
    world.Open(options);
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "a space");
    for (uint64_t n = 0; n < 60; ++n) REQUIRE(world.WriteNow(0, n) == absl::OkStatus());
    NotePinsNow(&world, {Pinned("old", "x"), Pinned("changed", "x"), Pinned("ended", "x")});
  }
  absl::Notification written;
  TroubledCatalog::Trouble trouble;
  trouble.status = GENERATE(absl::UnavailableError("EIO"), absl::DataLossError("checksum"));
  trouble.load = GENERATE(1, 2);
  if (trouble.load == 2) {
    trouble.chunks = 25;
    trouble.before = [&] { written.WaitForNotification(); };
  }
  CAPTURE(trouble.load, trouble.status.ToString());
  // Nobody knows any more what was noted before when that can't be read at all.
  std::vector<PinRow> pins{Pinned("changed", "y").row, Pinned("new", "z").row};
  if (trouble.load == 2) pins.push_back(Pinned("old", "x").row);
  {
    StoreWorld world;
    world.Open(WithTrouble(options, trouble));
    REQUIRE(world.store->OpenSpace(SpaceNamed(0), "a space") == 0);
    world.store->Start();
    CHECK(world.WriteNow(0, 1000) == absl::OkStatus());
    CHECK(world.WriteNow(0, 1001) == absl::OkStatus());
    CHECK(world.WriteNow(0, 1002) == absl::OkStatus());
    CHECK(world.WriteNow(0, 1002, 1) == absl::OkStatus());
    world.FreeNow(0, 1001);
    NotePinsNow(&world, {Pinned("changed", "y"), Over("ended"), Pinned("new", "z")});
    written.Notify();
    const Recovery& recovery = world.AwaitRecovered();
    CHECK(recovery.status == absl::OkStatus());
    CHECK(recovery.rebuilt);
    if (trouble.load == 2) CHECK(world.Pins() == pins);  // else it may have recovered before they were noted
    CHECK(absl::StrContains(recovery.message, trouble.status.message()));
    CHECK_FALSE(world.store->status().recovering);
    CHECK(world.count() == 62);
    CheckAll(&world);
  }
  {
    StoreWorld world;
    world.Open(options);
    const Recovery& recovery = world.StartNow();
    CHECK_FALSE(recovery.rebuilt);
    CHECK(recovery.chunks == 62);
    CHECK(recovery.skipped == 0);
    CHECK(world.Pins() == pins);
    const auto found = world.All();
    CHECK(found.contains({0, 1000}));
    CHECK_FALSE(found.contains({0, 1001}));
    CheckAll(&world);
    // Whatever room there is comes back.
    size_t more = 0;
    for (uint64_t n = 2000; n < 2400; ++n) more += world.WriteNow(0, n).ok();
    CHECK(more > 350);
  }
}

// A record whose row was refused is on the disk, and newer. A rebuild gave its place a row, of which the owner, who had the older one from the
// load, was never told: nobody kept it.
TEST_CASE("Store whose catalog can't be read to its end keeps to what it has handed over") {
  const kvist::test::TempDir dir;
  std::atomic<bool> full = false;
  {
    StoreWorld world;
    world.Open(In(dir));
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "a space");
    for (uint64_t n = 0; n < 20; ++n) REQUIRE(world.WriteNow(0, n) == absl::OkStatus());
  }
  {
    StoreWorld world;
    world.Open(WithTrouble(In(dir), {.load = 0, .full = &full}));
    world.StartNow();
    REQUIRE(world.WriteNow(0, 20) == absl::OkStatus());  // its segment has its row
    full = true;
    CHECK(absl::IsResourceExhausted(world.WriteNow(0, 7)));  // one of those that are loaded first
    full = false;
  }
  std::map<std::pair<uint32_t, uint64_t>, StoreWorld::Chunk> known;
  {
    StoreWorld world;
    world.Open(WithTrouble(In(dir), {.load = 2, .chunks = 10, .status = absl::DataLossError("checksum")}));
    const Recovery& recovery = world.StartNow();
    CHECK(recovery.status == absl::OkStatus());
    CHECK(recovery.rebuilt);
    CHECK(absl::StrContains(recovery.message, "checksum"));
    known = world.All();
    CHECK(known.size() == 21);
    CheckAll(&world);
  }
  StoreWorld world;
  world.Open(In(dir));
  const Recovery& recovery = world.StartNow();
  CHECK_FALSE(recovery.rebuilt);
  const auto found = world.All();
  REQUIRE(found.size() == 21);
  for (const auto& [name, chunk] : known) CHECK(found.at(name).places == chunk.places);
}

// And the other way round: the record that was handed over is damaged, and an older one is left, which the owner doesn't keep.
TEST_CASE("Store whose catalog can't be read to its end gives no row to an older record of what it has handed over") {
  const kvist::test::TempDir dir;
  const StoreOptions options = In(dir);
  Place newer;
  {
    StoreWorld world;
    world.Open(options);
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "a space");
    for (uint64_t n = 0; n < 20; ++n) REQUIRE(world.WriteNow(0, n) == absl::OkStatus());
    REQUIRE(world.WriteNow(0, 7) == absl::OkStatus());
    newer = world.All().at({0, 7}).places[0];
  }
  {
    std::fstream file(options.directories[DeviceOf(newer.segment)] + "/" + SegmentFileName(newer.segment),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(OffsetOf(newer).value + 40));
    file.put('x').put('y').put('z');
    REQUIRE(file.good());
  }
  {
    StoreWorld world;
    world.Open(WithTrouble(options, {.load = 2, .chunks = 10, .status = absl::DataLossError("checksum")}));
    CHECK(world.StartNow().rebuilt);
    REQUIRE(world.All().contains({0, 7}));
    CHECK(absl::IsDataLoss(world.ReadNow(0, 7)));
  }
  StoreWorld world;
  world.Open(options);
  CHECK_FALSE(world.StartNow().rebuilt);
  CHECK(world.count() == 19);
  CHECK_FALSE(world.All().contains({0, 7}));
}

TEST_CASE("Store forgets what was cleared, with its catalog and without it") {
  const kvist::test::TempDir dir;
  const bool lost = GENERATE(false, true);
  {
    StoreWorld world;
    world.Open(In(dir));
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "the first");
    world.store->OpenSpace(SpaceNamed(1), "the second");
    for (uint64_t n = 0; n < 20; ++n) REQUIRE(world.WriteNow(n % 2, n) == absl::OkStatus());
    CHECK(world.ClearNow(0) == absl::OkStatus());
    CHECK(world.count() == 10);
    for (uint64_t n = 100; n < 104; ++n) REQUIRE(world.WriteNow(0, n) == absl::OkStatus());
    CHECK(absl::IsInvalidArgument(world.ClearNow(7)));
  }
  if (lost) fs::remove(dir / "a/catalog/CURRENT");
  {
    StoreWorld world;
    world.Open(In(dir));
    CHECK(world.store->OpenSpace(SpaceNamed(0), "the first") == 0);
    CHECK(world.store->OpenSpace(SpaceNamed(1), "the second") == 1);
    const Recovery& recovery = world.StartNow();
    CHECK(recovery.rebuilt == lost);
    CHECK(recovery.chunks == 14);
    CHECK((recovery.cleared > 0) == lost);  // the others' rows are gone
    CheckAll(&world);
    CHECK(world.ClearNow(std::nullopt) == absl::OkStatus());
    REQUIRE(world.WriteNow(1, 200) == absl::OkStatus());
  }
  if (lost) fs::remove(dir / "a/catalog/CURRENT");
  StoreWorld world;
  world.Open(In(dir));
  CHECK(world.StartNow().chunks == 1);
}

TEST_CASE("Store uses its segments again, asks for what lies there before, and keeps clears for ever") {
  const kvist::test::TempDir dir;
  const bool keeps = GENERATE(true, false);
  const bool lost = GENERATE(true, false);
  uint64_t cleared_below = 0;
  // How many is for the asking, which runs beside the writes
  std::map<std::pair<uint32_t, uint64_t>, StoreWorld::Chunk> kept;
  {
    StoreWorld world({.shards = 2, .keeps_newest = keeps});
    world.Open(In(dir, 12));
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "the first");
    uint64_t written = 0, refused = 0;
    // 25 records of 7 units a segment: about 140 chunks in all; the tier is written ten times over.
    for (uint64_t n = 0; n < 1500; ++n) {
      const absl::Status status = world.WriteNow(0, n);
      (status.ok() ? written : refused) += 1;
      if (!status.ok()) CHECK(absl::IsResourceExhausted(status));
      if (n == 60) {
        REQUIRE(world.ClearNow(0) == absl::OkStatus());
        cleared_below = n + 1;
      }
    }
    CHECK(written > 1450);
    const Store::Status status = world.store->status();
    CHECK(status.devices[0].segments_released > 20);
    CHECK(status.devices[1].segments_released > 20);
    CheckAll(&world);
    world.Close();
    kept = world.All();
    if (keeps) CHECK_FALSE(kept.empty());  // else it may have given up all that it was asked for
  }
  if (lost) fs::remove(dir / "a/catalog/CURRENT");
  StoreWorld world({.shards = 2});
  world.Open(In(dir, 12));
  const Recovery& recovery = world.StartNow();
  CHECK(recovery.status.ok());
  CHECK(recovery.skipped == 0);
  for (const auto& [name, chunk] : kept) CHECK(world.found_at_start.contains(name));
  for (const auto& [name, chunk] : world.All()) CHECK(name.second >= cleared_below);
  CheckAll(&world);
  // And they still can be written.
  uint64_t written = 0;
  for (uint64_t n = 5000; n < 5300; ++n) written += world.WriteNow(0, n).ok();
  CHECK(written > 250);
  CheckAll(&world);
}

// Whether a device's figures say so soon: they are told up to a turn later than what they count.
bool SaysSoon(const StoreWorld& world, const std::function<bool(const Store::DeviceRow&)>& holds) {
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (!holds(world.store->status().devices[0])) {
    if (absl::Now() > until) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

TEST_CASE("Store of a damaged segment has all but what was damaged, and says DataLoss") {
  const kvist::test::TempDir dir;
  StoreWorld world({.shards = 1});
  world.Open(In(dir, 8, 1));
  world.StartNow();
  world.store->OpenSpace(SpaceNamed(0), "");
  for (uint64_t n = 0; n < 10; ++n) REQUIRE(world.WriteNow(0, n) == absl::OkStatus());
  const Place place = world.All().at({0, 4}).places[0];
  {
    std::fstream file(dir / "a" + std::string("/segment-00000000"), std::ios::in | std::ios::out | std::ios::binary);
    REQUIRE(place.segment == 0);
    file.seekp(static_cast<std::streamoff>(OffsetOf(place).value + kHeaderBytes.value + 100));
    file.put('x').put('y').put('z');
    REQUIRE(file.good());
  }
  size_t lost = 0;
  for (uint64_t n = 0; n < 10; ++n) {
    const absl::Status read = world.ReadNow(0, n);
    lost += absl::IsDataLoss(read);
    CHECK(read.ok() == (n != 4));
  }
  CHECK(lost == 1);
  CHECK(SaysSoon(world, [](const auto& row) { return row.verdicts[static_cast<int>(Verdict::kCorrupt)] == 1; }));
}

// Turns a bit of the file that holds the place, so many bytes behind it; by direct I/O, as the store reads.
void FlipBit(const StoreOptions& options, Place place, uint64_t behind) {
  const std::string path = options.directories[DeviceOf(place.segment)] + "/" + SegmentFileName(place.segment);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (!file) file = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(file.get() >= 0);
  AlignedBytes unit(kUnit);
  const uint64_t at = OffsetOf(place).value + behind;
  const auto first = static_cast<off_t>(at / kUnit.value * kUnit.value);
  REQUIRE(::pread(file.get(), unit.data(), kUnit.value, first) == static_cast<ssize_t>(kUnit.value));
  unit.data()[at % kUnit.value] ^= std::byte{0x10};
  REQUIRE(::pwrite(file.get(), unit.data(), kUnit.value, first) == static_cast<ssize_t>(kUnit.value));
}

std::set<std::pair<uint32_t, uint64_t>> DamagedAfterPasses(StoreWorld* world, uint64_t passes) {
  const uint64_t until = world->store->status().scrubbed.passes + passes;
  const absl::Time deadline = absl::Now() + StoreWorld::kLong;
  while (world->store->status().scrubbed.passes < until && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  REQUIRE(world->store->status().scrubbed.passes >= until);
  const absl::MutexLock lock(&world->mutex);
  return world->damaged;
}

TEST_CASE(
    "Store that is scrubbed finds all that was damaged, in payloads and headers, while it is closed and while it runs") {
  const kvist::test::TempDir dir;
  StoreOptions options = In(dir);
  options.scrub_every = absl::Milliseconds(200);
  std::map<std::pair<uint32_t, uint64_t>, StoreWorld::Chunk> chunks;
  {
    StoreWorld world({.shards = 1});
    world.Open(options);
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "");
    for (uint64_t n = 0; n < 150; ++n) REQUIRE(world.WriteNow(0, n) == absl::OkStatus());
    CHECK(DamagedAfterPasses(&world, 2).empty());
    CHECK(world.store->status().scrubbed.records >= 100);
    chunks = world.All();
  }
  const auto damage = [&](uint64_t n) {
    const uint64_t behind = n % 3 == 0 ? n * 7 % offsetof(RecordHeader, seal)
                                       : kHeaderBytes.value + n * 1009 % StoreWorld::kShape.payload().value;
    FlipBit(options, chunks.at({0, n}).places[0], behind);
  };
  std::set<std::pair<uint32_t, uint64_t>> flipped;
  for (uint64_t n = 3; n < 140; n += 8) {
    damage(n);
    flipped.insert({0, n});
  }
  StoreWorld world({.shards = 1});
  world.Open(options);
  world.StartNow();
  CHECK(DamagedAfterPasses(&world, 2) == flipped);
  for (uint64_t n = 5; n < 140; n += 16) {
    damage(n);
    flipped.insert({0, n});
  }
  const auto found = DamagedAfterPasses(&world, 2);
  for (const auto& [space, n] : flipped) {
    INFO("chunk " << n << " in segment " << chunks.at({0, n}).places[0].segment << ", "
                  << (n % 3 == 0 ? "header" : "payload"));
    CHECK(found.contains({space, n}));
  }
  CHECK(found.size() == flipped.size());
}

TEST_CASE("Store whose segments are used again is never called damaged by its scrubber") {
  const kvist::test::TempDir dir;
  StoreWorld world({.shards = 1});
  StoreOptions options = In(dir, 8, 1);
  options.scrub_every = absl::Milliseconds(1);
  world.Open(options);
  world.StartNow();
  world.store->OpenSpace(SpaceNamed(0), "");
  uint64_t written = 0;
  for (uint64_t n = 0; n < 1500; ++n) written += world.WriteNow(0, n).ok();
  CHECK(written > 1000);
  CHECK(SaysSoon(world, [](const auto& row) { return row.segments_released > 20; }));
  CHECK(DamagedAfterPasses(&world, 2).empty());
  CHECK(world.store->status().scrubbed.damaged == 0);
}

TEST_CASE("Store keeps its segments' size, whatever is configured later, and with it all that lies there") {
  const kvist::test::TempDir dir;
  {
    StoreWorld world;
    world.Open(In(dir));
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "the first");
    for (uint64_t n = 0; n < 20; ++n) REQUIRE(world.WriteNow(0, n) == absl::OkStatus());
  }
  // As a start finds it by which the capacity is larger, or smaller: segments would have another size in a new store. And one more directory,
  // which isn't there yet.
  for (const uint64_t times : {3, 1, 2}) {
    INFO("capacity times " << times);
    StoreOptions options = In(dir, 32, times == 2 ? 3 : 2);
    options.segment = KiB(256) * times;
    options.capacity = KiB(512) * 16 * options.directories.size() * times;
    StoreWorld world;
    world.Open(std::move(options));
    const Recovery& recovery = world.StartNow();
    CHECK(recovery.status.ok());
    CHECK(recovery.message.empty());
    CHECK(recovery.chunks == 20);
    const Store::Status status = world.store->status();
    CHECK(status.devices[0].segments == 16 * times);
    CheckAll(&world);
    REQUIRE(world.WriteNow(0, 100 + times) == absl::OkStatus());
    world.FreeNow(0, 100 + times);
  }
  // With a capacity that four of its segments don't fit into it is a new one, and says what that cost.
  StoreOptions options = In(dir);
  options.segment = KiB(64);
  options.capacity = KiB(64) * 8 * 2;
  StoreWorld world;
  world.Open(std::move(options));
  const Recovery& recovery = world.StartNow();
  CHECK(recovery.status.ok());
  CHECK(absl::StrContains(recovery.message, "segments of 524288 bytes are too large for a capacity of 1048576 bytes"));
  CHECK(recovery.chunks == 0);
  world.store->OpenSpace(SpaceNamed(0), "the first");
  for (uint64_t n = 0; n < 4; ++n) REQUIRE(world.WriteNow(0, n) == absl::OkStatus());
  CheckAll(&world);
}

TEST_CASE("Store whose capacity has become smaller gives the rest of the disk back") {
  const kvist::test::TempDir dir;
  const auto files = [&](const char* directory) {
    size_t segments = 0;
    for (const auto& entry : fs::directory_iterator(dir / directory))
      segments += absl::StartsWith(entry.path().filename().string(), "segment-");
    return segments;
  };
  {
    StoreWorld world;
    world.Open(In(dir, 32));
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "a space");
    for (uint64_t n = 0; files("a") < 14; ++n) REQUIRE(world.WriteNow(0, n) == absl::OkStatus());
    REQUIRE(files("b") > 4);
  }
  const bool again = GENERATE(false, true);  // whether what was written last is written again elsewhere
  StoreWorld world({.keeps_newest = again});
  world.versions_max = 2;
  world.Open(In(dir, 12));
  CHECK(world.StartNow().chunks > 0);
  for (int i = 0; i < 20'000 && (files("a") > 6 || files("b") > 6); ++i) absl::SleepFor(absl::Milliseconds(1));
  CHECK(files("a") <= 6);
  CHECK(files("b") <= 6);
  CheckAll(&world);
  CHECK(world.WriteNow(0, 9999) == absl::OkStatus());
  world.Close();
  StoreWorld later;
  later.versions_max = 2;
  later.Open(In(dir, 12));
  CHECK(later.StartNow().skipped == 0);
  CheckAll(&later);
}

TEST_CASE("Store refuses what can't be, and names it") {
  const kvist::test::TempDir dir;
  StoreOptions options = In(dir);
  options.directories.clear();
  CHECK(absl::StrContains(Store::Open(options, nullptr).status().message(), "directories"));
  options = In(dir);
  options.segment = KiB(513);
  CHECK(absl::StrContains(Store::Open(options, nullptr).status().message(), "segment"));
  options = In(dir, 7);
  CHECK(absl::StrContains(Store::Open(options, nullptr).status().message(), "capacity"));
  StoreWorld world;
  world.Open(In(dir));
  CHECK(absl::IsFailedPrecondition(Store::Open(In(dir), &world).status()));  // there is one that has it
  world.StartNow();
  CHECK(absl::IsInvalidArgument(world.WriteNow(5, 1)));  // no such space
  StoreWorld large({.shape = {.layers = 1, .layer_bytes = KiB(512)}});
  const kvist::test::TempDir other;
  large.Open(In(other));
  large.StartNow();
  large.store->OpenSpace(SpaceNamed(0), "");
  CHECK(absl::IsInvalidArgument(large.WriteNow(0, 1)));
}

TEST_CASE("Store that is closed at any moment ends all that it was given") {
  for (int i = 0; i < 20; ++i) {
    const kvist::test::TempDir dir;
    StoreWorld world;
    world.Open(In(dir));
    if (i % 4 != 0) world.store->Start();
    world.store->OpenSpace(SpaceNamed(0), "the first");
    std::vector<uint64_t> tickets;
    for (uint64_t n = 0; n < static_cast<uint64_t>(i) * 5; ++n) tickets.push_back(world.Begin(0, n));
    world.store->Clear(0, [](const absl::Status&) {});
    world.Close();
    const absl::MutexLock lock(&world.mutex);
    for (const uint64_t ticket : tickets) {
      REQUIRE(world.results.contains(ticket));
      const absl::Status& status = world.results.at(ticket);
      CHECK((status.ok() || absl::IsCancelled(status)));
    }
  }
}

TEST_CASE("of two writes of a chunk at the same time the later one's row stays") {
  const kvist::test::TempDir dir;
  {
    StoreWorld world;
    world.Open(In(dir));
    world.StartNow();
    world.store->OpenSpace(SpaceNamed(0), "the first");
    for (uint64_t n = 0; n < 20; ++n) {
      const uint64_t first = world.Begin(0, n, 0), second = world.Begin(0, n, 1);
      world.store->Flush();
      const absl::Status overtaken = world.WaitFor(first);
      CHECK((overtaken.ok() || absl::IsCancelled(overtaken)));
      CHECK(world.WaitFor(second) == absl::OkStatus());
    }
  }
  StoreWorld world;
  world.Open(In(dir));
  CHECK(world.StartNow().chunks == 20);
  {
    const absl::MutexLock lock(&world.mutex);
    for (auto& [name, chunk] : world.chunks) chunk.version = 1;
  }
  CheckAll(&world);
}

}  // namespace
}  // namespace kvist::ssd::test
