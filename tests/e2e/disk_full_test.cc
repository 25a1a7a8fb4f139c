// Row 8 of the fault matrix: a real kvistd whose disk is full.
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/recovery.h"
#include "tests/support/temp_dir.h"

using Catch::Contains;
using kvist::test::Ctl;
using kvist::test::CtlSays;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::HasRecovered;
using kvist::test::SsdOf;
using kvist::test::TempDir;
using Clock = std::chrono::steady_clock;

namespace {

constexpr uint32_t kChunks = 16;   // of a prompt
constexpr uint32_t kPrompts = 60;  // six pools

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A file system of its own, as large as this; `mounted` is false where none may be mounted.
struct SmallDisk {
  SmallDisk(std::string at, const std::string& size) : path(std::move(at)) {
    std::filesystem::create_directory(path);
    mounted = ::mount("kvist-test", path.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted) ::umount2(path.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // Somebody else takes what is left but for `left` MiB.
  void Fill(uint64_t left) const {
    const int fd = ::open(ballast().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    const uint64_t available = std::filesystem::space(path).available;
    REQUIRE(available > left << 20);
    REQUIRE(::posix_fallocate(fd, 0, static_cast<off_t>(available - (left << 20))) == 0);
    ::close(fd);
  }
  void Empty() const { std::filesystem::remove(ballast()); }
  std::string ballast() const { return path + "/ballast"; }

  std::string path;
  bool mounted = false;
};

std::vector<std::string> SettingsOn(const SmallDisk& disk, const std::string& capacity) {
  return {"ssd.enabled=true",     "ssd.path=" + disk.path + "/ssd", "ssd.capacity=" + capacity, "pool.bytes=6MiB",
          "pool.slab_bytes=1MiB", "pool.touch_threads=0",           "lease.share=0.9"};
}

// What kvistctl doctor has found of this.
nlohmann::json FindingOf(const DaemonProcess& daemon, const std::string& check) {
  const std::string said = CtlSays(daemon, {"doctor"}).second;  // something else may fail here
  const nlohmann::json findings = nlohmann::json::parse(said)["findings"];
  for (const auto& finding : findings) {
    if (finding["check"] == check) return finding;
  }
  FAIL("no check " << check << ": " << said);
  return {};
}

std::vector<kvist_key> Prompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kChunks); }

}  // namespace

TEST_CASE("row 8: a full disk takes no chunks and costs no engine anything; with room again it goes on") {
  const TempDir dir;
  const SmallDisk disk(dir / "disk", "160m");
  if (!disk.mounted) {
    std::printf("row 8: skipped: no tmpfs can be mounted here\n");
    return;
  }
  DaemonProcess daemon(dir.path(), SettingsOn(disk, "128MiB"));
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  std::string wrong;
  REQUIRE(engine.StoreAll(Prompt(engine, 200)).status == KVIST_OK);
  REQUIRE(engine.scheduler().Flush(10'000'000).ok());

  disk.Fill(0);
  uint32_t stored = 0, served = 0;
  for (uint32_t p = 0; p < kPrompts; ++p) {
    stored += engine.StoreAll(Prompt(engine, p)).status == KVIST_OK ? 1 : 0;
    served += engine.LoadAll(Prompt(engine, p), &wrong);
  }
  CHECK(stored == kPrompts);
  CHECK(served == kPrompts * kChunks);
  CHECK(wrong.empty());
  CHECK_FALSE(engine.scheduler().Flush(10'000'000).ok());
  const nlohmann::json ssd = SsdOf(daemon);
  INFO(ssd.dump(1));
  CHECK(ssd["state"] == "read-only");
  CHECK_FALSE(ssd["trouble"].get<std::string>().empty());
  const nlohmann::json told = FindingOf(daemon, "SSD tier");
  INFO(told.dump(1));
  CHECK(told["level"] == "warn");
  CHECK_THAT(told["text"].get<std::string>(),
             Contains("read-only, in " + disk.path + "/ssd") && Contains("free some space"));
  CHECK_THAT(told["mend"].get<std::string>(), Contains("[ssd] path = where there is room"));
  CHECK_THAT(FindingOf(daemon, "state directory")["text"].get<std::string>(), Contains(dir.path()));
  CHECK(engine.LoadAll(Prompt(engine, 200), &wrong) == kChunks);  // what lies there is read all the same
  CHECK(wrong.empty());
  REQUIRE(engine.StoreAll(Prompt(engine, 100)).status == KVIST_OK);

  disk.Empty();
  const Clock::time_point freed = Clock::now();
  uint32_t durable = 0;
  REQUIRE(Eventually([&] { return engine.scheduler().Flush(1'000'000, &durable).ok(); }));
  const double seconds = SecondsSince(freed);
  CHECK(durable >= kChunks);
  CHECK(SsdOf(daemon)["trouble"].get<std::string>().empty());
  daemon.Kill();
  daemon.Start();
  FakeEngine again(FakeEngine::On(daemon.socket()));
  REQUIRE(again.status.ok());
  REQUIRE(HasRecovered(daemon));
  for (const uint32_t p : {100U, 200U}) CHECK(again.LoadAll(Prompt(again, p), &wrong) == kChunks);
  CHECK(wrong.empty());
  std::printf(
      "row 8: full disk: %u of %u stores taken, %u of %u chunks served meanwhile, wrong chunks 0; written again %.2f s "
      "after "
      "there was room\n",
      stored, kPrompts, served, kPrompts * kChunks, seconds);
}

TEST_CASE("row 8: a kvistd with a full disk stops cleanly, and starts again with what was durable") {
  const TempDir dir;
  const SmallDisk disk(dir / "disk", "160m");
  if (!disk.mounted) {
    std::printf("row 8: skipped: no tmpfs can be mounted here\n");
    return;
  }
  DaemonProcess daemon(dir.path(), SettingsOn(disk, "128MiB"));
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    REQUIRE(engine.StoreAll(Prompt(engine, 1)).status == KVIST_OK);
    REQUIRE(engine.scheduler().Flush(10'000'000).ok());
    disk.Fill(8);  // more than a start needs, less than the catalog wants
    for (uint32_t p = 2; p < kPrompts; ++p) REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
    REQUIRE(Eventually([&] { return SsdOf(daemon)["state"] == "read-only"; }));
  }
  REQUIRE(daemon.Terminate() == 0);
  daemon.Start();
  REQUIRE(HasRecovered(daemon));
  FakeEngine again(FakeEngine::On(daemon.socket()));
  REQUIRE(again.status.ok());
  std::string wrong;
  CHECK(again.LoadAll(Prompt(again, 1), &wrong) == kChunks);
  CHECK(wrong.empty());
}

TEST_CASE("row 8: a tier that may be larger than its disk works with what fits there") {
  const TempDir dir;
  const SmallDisk disk(dir / "disk", "360m");
  if (!disk.mounted) {
    std::printf("row 8: skipped: no tmpfs can be mounted here\n");
    return;
  }
  DaemonProcess daemon(dir.path(), SettingsOn(disk, "1GiB"));  // in 64 segments, a quarter of which fit
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  // A few prompts that are asked for again and again, while others come and go until the disk has been filled twice.
  std::string wrong;
  uint32_t served = 0, asked = 0;
  uint64_t written = 0;
  for (uint32_t p = 0; p < 20000 && written < uint64_t{768} << 20; ++p) {
    REQUIRE(engine.StoreAll(Prompt(engine, 10 + p)).status == KVIST_OK);
    if (p % 8 == 0) {
      const std::vector<kvist_key> again = Prompt(engine, p / 8 % 8);
      const uint32_t hit = engine.LoadAll(again, &wrong);
      if (hit < kChunks) REQUIRE(engine.StoreAll(again).status == KVIST_OK);
      served += p < 64 ? 0 : hit;
      asked += p < 64 ? 0 : kChunks;
    }
    if (p % 100 == 0) written = Ctl(daemon, {"ssd"})["devices"][0]["written_bytes"];
  }
  CHECK(wrong.empty());
  CHECK(written >= uint64_t{768} << 20);
  CHECK(served > asked * 3 / 4);  // what is asked for lately is written again when its segment is wanted
  std::printf("row 8: a tier of 1 GiB on a disk of 360 MiB: %.0f MiB written, %u of %u chunks served, wrong chunks 0\n",
              static_cast<double>(written) / (1 << 20), served, asked);
}
