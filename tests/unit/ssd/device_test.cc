#include "storage/ssd/device.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <thread>

#include "absl/strings/match.h"
#include "storage/base/clock.h"
#include "storage/ssd/segment_header.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/records.h"

namespace kvist::ssd {
namespace {

constexpr Bytes kSegmentBytes = MiB(4);

// A device over a fresh directory, of each kind: beside the machine's own file system one in memory.
struct Opened {
  test::TempDir directory;
  std::unique_ptr<Device> device;
  std::map<uint64_t, int> errors;  // by tag

  explicit Opened(bool io_uring) {
    auto opened =
        OpenDevice({.directory = directory.path(), .segment_bytes = kSegmentBytes, .io_uring = io_uring, .threads = 3});
    INFO(opened.status().ToString());
    REQUIRE(opened.ok());
    device = std::move(*opened);
    if (io_uring && !absl::StartsWith(device->report().how, "io_uring"))
      WARN("no io_uring here: " << device->report().warnings.at(0));
  }
  void WaitFor(size_t count) {
    const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
    std::vector<Completion> ended;
    while (errors.size() < count) {
      REQUIRE(MonotonicNow() < deadline);
      ended.clear();
      device->Wait(deadline, &ended);
      for (const Completion& completion : ended) REQUIRE(errors.emplace(completion.tag, completion.error).second);
    }
  }
  int Do(Io io) {
    errors.clear();
    io.tag = 1;
    device->Submit(io);
    WaitFor(1);
    return errors.at(1);
  }
  int Allocate(uint32_t segment) { return Do({.kind = Io::Kind::kAllocate, .segment = segment}); }
};

TEST_CASE("Device reads what it wrote, many at once") {
  const bool io_uring = GENERATE(true, false);
  Opened of(io_uring);
  REQUIRE(of.Allocate(16) == 0);
  constexpr uint64_t kPieces = 64;
  constexpr uint64_t kPiece = 65536;
  static_assert(kPieces * kPiece == kSegmentBytes.value);
  AlignedBytes out(kSegmentBytes);
  AlignedBytes in(kSegmentBytes);
  const bool registered = GENERATE(false, true);
  if (registered) {
    const absl::Status status = of.device->Register({in.data(), in.size().value});
    if (!status.ok()) WARN(status.ToString());
  }
  for (uint64_t i = 0; i < out.size().value; ++i) out.data()[i] = static_cast<std::byte>(i * 7 + i / 4096);
  of.errors.clear();
  for (uint64_t i = 0; i < kPieces; ++i)
    of.device->Submit({Io::Kind::kWrite, 16, {i * kPiece}, {out.data() + i * kPiece, kPiece}, i});
  of.WaitFor(kPieces);
  for (const auto& [tag, error] : of.errors) CHECK(error == 0);
  CHECK(of.Do({.kind = Io::Kind::kSync, .segment = 16}) == 0);
  of.errors.clear();
  for (uint64_t i = 0; i < kPieces; ++i)
    of.device->Submit({Io::Kind::kRead, 16, {i * kPiece}, {in.data() + i * kPiece, kPiece}, i});
  of.WaitFor(kPieces);
  for (const auto& [tag, error] : of.errors) CHECK(error == 0);
  CHECK(std::memcmp(in.data(), out.data(), out.size().value) == 0);
}

TEST_CASE("Device allocates a file with all of its space, and leaves what is in one that is there") {
  const bool io_uring = GENERATE(true, false);
  Opened of(io_uring);
  REQUIRE(of.Allocate(0) == 0);
  struct stat file {};
  REQUIRE(stat((of.directory / SegmentFileName(0)).c_str(), &file) == 0);
  CHECK(static_cast<uint64_t>(file.st_size) == kSegmentBytes.value);
  CHECK(static_cast<uint64_t>(file.st_blocks) * 512 >= kSegmentBytes.value);
  AlignedBytes unit(kUnit);
  std::memset(unit.data(), 'x', kUnit.value);
  REQUIRE(of.Do({Io::Kind::kWrite, 0, {kUnit.value}, {unit.data(), kUnit.value}}) == 0);
  REQUIRE(of.Allocate(0) == 0);
  std::memset(unit.data(), 0, kUnit.value);
  REQUIRE(of.Do({Io::Kind::kRead, 0, {kUnit.value}, {unit.data(), kUnit.value}}) == 0);
  CHECK(unit.data()[100] == std::byte{'x'});
}

TEST_CASE("Device says which errors there were") {
  const bool io_uring = GENERATE(true, false);
  Opened of(io_uring);
  AlignedBytes unit(kUnit);
  const std::span<std::byte> bytes(unit.data(), kUnit.value);
  CHECK(of.Do({Io::Kind::kRead, 5, {}, bytes}) == ENOENT);
  CHECK(of.Do({Io::Kind::kSync, 5}) == ENOENT);
  REQUIRE(of.Allocate(5) == 0);
  CHECK(of.Do({Io::Kind::kRead, 5, {kSegmentBytes.value}, bytes}) == ENODATA);
  // A read that begins within the file and ends behind it got some bytes; they aren't all.
  AlignedBytes two(kUnit * 2);
  CHECK(of.Do({Io::Kind::kRead, 5, {kSegmentBytes.value - kUnit.value}, {two.data(), 2 * kUnit.value}}) == ENODATA);
  // A file that may not grow so large: what fallocate says of it.
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = kSegmentBytes.value / 2;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  const int error = of.Allocate(6);
  signal(SIGXFSZ, ignored);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(error == EFBIG);
}

TEST_CASE("Device's Wait returns when it is woken, and when its time is up") {
  const bool io_uring = GENERATE(true, false);
  Opened of(io_uring);
  std::vector<Completion> ended;
  of.device->Wait(absl::InfinitePast(), &ended);
  of.device->Wait(MonotonicNow() + absl::Milliseconds(2), &ended);
  for (int i = 0; i < 100; ++i) {
    std::thread waker([&] { of.device->Wake(); });
    of.device->Wait(MonotonicNow() + absl::Seconds(60), &ended);
    waker.join();
  }
  of.device->Wake();  // before the Wait that it ends
  const absl::Time began = MonotonicNow();
  of.device->Wait(began + absl::Seconds(60), &ended);
  CHECK(MonotonicNow() - began < absl::Seconds(50));
  CHECK(ended.empty());
}

TEST_CASE("Device has news when something has ended or it was woken, and io_uring none when nothing is there") {
  const bool io_uring = GENERATE(true, false);
  Opened of(io_uring);
  REQUIRE(of.Allocate(0) == 0);
  std::vector<Completion> ended;
  of.device->Wait(absl::InfinitePast(), &ended);
  const bool tells = io_uring && of.device->report().how.find("io_uring") != std::string::npos;
  const auto has_news = [&] {
    const absl::Time end = MonotonicNow() + absl::Seconds(50);
    while (!of.device->HasNews() && MonotonicNow() < end) std::this_thread::yield();
    return of.device->HasNews();
  };
  for (int i = 0; i < 20; ++i) {
    if (tells) CHECK_FALSE(of.device->HasNews());
    AlignedBytes in(Bytes{4096});
    of.device->Submit({Io::Kind::kRead, 0, {}, {in.data(), 4096}, 7});
    CHECK(of.device->HasNews());  // it isn't begun
    of.device->Kick();
    CHECK(has_news());
    of.device->Wait(absl::InfiniteFuture(), &ended);
    REQUIRE(ended.size() == static_cast<size_t>(i) + 1);
    of.device->Wake();
    CHECK(has_news());
    of.device->Wait(absl::InfiniteFuture(), &ended);
  }
}

TEST_CASE("Device ends what is in flight before it goes") {
  const bool io_uring = GENERATE(true, false);
  AlignedBytes in(kSegmentBytes);
  {
    Opened of(io_uring);
    REQUIRE(of.Allocate(0) == 0);
    for (uint64_t i = 0; i < 32; ++i) of.device->Submit({Io::Kind::kRead, 0, {i * 4096}, {in.data() + i * 4096, 4096}, i});
  }  // AddressSanitizer would see a thread that still reads
  SUCCEED();
}

TEST_CASE("OpenDevice names what it can't use") {
  const auto refused = [](DeviceOptions options) { return OpenDevice(options).status().ToString(); };
  CHECK(absl::StrContains(refused({.directory = "/nonexistent/ssd", .segment_bytes = kSegmentBytes}), "/nonexistent/ssd"));
  test::TempDir directory;
  CHECK(absl::StrContains(refused({.directory = directory.path(), .segment_bytes = {4097}}), "segment_bytes"));
  CHECK(
      absl::StrContains(refused({.directory = directory.path(), .segment_bytes = kSegmentBytes, .threads = 0}), "threads"));
}

TEST_CASE("OpenDevice says how it works") {
  test::TempDir directory;
  auto threads =
      OpenDevice({.directory = directory.path(), .segment_bytes = kSegmentBytes, .io_uring = false, .threads = 2});
  REQUIRE(threads.ok());
  CHECK(absl::StartsWith((*threads)->report().how, "2 threads, "));
  CHECK((*threads)->report().direct == absl::StrContains((*threads)->report().how, "direct"));
  CHECK((*threads)->report().warnings.empty() == (*threads)->report().direct);
}

}  // namespace
}  // namespace kvist::ssd
