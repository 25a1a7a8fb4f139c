#include "cuda/engine_process.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "cuda/engine_region.h"
#include "cuda/shared_memory_engine.h"
#include "storage/base/mapping.h"
#include "tests/support/child_process.h"
#include "tests/support/numa_nodes.h"
#include "tests/unit/cuda/kv_world.h"

namespace kvist::cuda {
namespace {

UniqueFd PidfdOf(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

// A process that only is there. Its memory is a copy of this one's at the time of the fork.
class Sleeper : public test::ChildProcess {
 public:
  Sleeper()
      : ChildProcess([] {
          while (true) ::pause();
          return 0;
        }) {}
};

// Three pages of which the middle one isn't there.
class HoleyPages {
 public:
  HoleyPages()
      : data_(static_cast<std::byte*>(
            ::mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(data_ != MAP_FAILED);
    std::memset(data_, 7, 3 * kPage);
    REQUIRE(::munmap(data_ + kPage, kPage) == 0);
  }
  ~HoleyPages() {
    ::munmap(data_, kPage);
    ::munmap(data_ + 2 * kPage, kPage);
  }
  static constexpr size_t kPage = 4096;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

TEST_CASE("EngineProcess writes and reads another process's memory in pieces of any lengths") {
  std::vector<unsigned char> theirs(70'000), ours(70'000), back(70'000);
  std::iota(ours.begin(), ours.end(), 0);
  Sleeper sleeper;
  const EngineProcess process(sleeper.pid(), PidfdOf(sleeper.pid()));
  std::vector<iovec> there{{theirs.data(), 1}, {theirs.data() + 1, 69'999}};
  std::vector<iovec> here{{ours.data(), 30'000}, {ours.data() + 30'000, 1}, {ours.data() + 30'001, 39'999}};
  REQUIRE(process.Write(there, here) == absl::OkStatus());
  CHECK(theirs == std::vector<unsigned char>(70'000));  // it was the other one's that was written
  there = {{theirs.data(), 70'000}};
  here.clear();
  for (size_t at = 0; at < back.size(); at += 100) here.push_back({back.data() + at, 100});
  REQUIRE(here.size() <= IOV_MAX);
  REQUIRE(process.Read(there, here) == absl::OkStatus());
  CHECK(back == ours);
}

TEST_CASE("EngineProcess says OutOfRange where nothing is mapped, also after a part was copied") {
  const HoleyPages pages;
  const EngineProcess self(::getpid(), PidfdOf(::getpid()));
  std::vector<std::byte> ours(3 * HoleyPages::kPage);
  for (const auto copy : {&EngineProcess::Read, &EngineProcess::Write}) {
    for (const size_t from : {size_t{0}, HoleyPages::kPage, size_t{100}}) {
      iovec there{pages.data() + from, 2 * HoleyPages::kPage}, here{ours.data(), 2 * HoleyPages::kPage};
      const absl::Status status = (self.*copy)({&there, 1}, {&here, 1});
      CHECK(status.code() == absl::StatusCode::kOutOfRange);
      CHECK(status.message().find("isn't mapped") != absl::string_view::npos);
    }
  }
  // May be read, but not written.
  REQUIRE(::mprotect(pages.data(), HoleyPages::kPage, PROT_READ) == 0);
  iovec there{pages.data(), 10}, here{ours.data(), 10};
  CHECK(self.Read({&there, 1}, {&here, 1}) == absl::OkStatus());
  there = {pages.data(), 10}, here = {ours.data(), 10};
  CHECK(self.Write({&there, 1}, {&here, 1}).code() == absl::StatusCode::kOutOfRange);
}

TEST_CASE("EngineProcess counts no copy for a process that has ended, though its pid serves another one") {
  // The next best thing to a pid that was given out again: the pid of one process that lives, the pidfd of another that has ended.
  std::vector<std::byte> theirs(100), ours(100, std::byte{9});  // before the forks: the others have them, too
  Sleeper dead, alive;
  const EngineProcess process(alive.pid(), PidfdOf(dead.pid()));
  iovec there{theirs.data(), 100}, here{ours.data(), 100};
  CHECK(process.Read({&there, 1}, {&here, 1}) == absl::OkStatus());
  dead.Kill();
  there = {theirs.data(), 100}, here = {ours.data(), 100};
  CHECK(process.Read({&there, 1}, {&here, 1}).code() == absl::StatusCode::kUnavailable);
  ours.assign(100, std::byte{9});
  there = {theirs.data(), 100}, here = {ours.data(), 100};
  CHECK(process.Write({&there, 1}, {&here, 1}).code() == absl::StatusCode::kUnavailable);
  // And nothing was written to the living one.
  const EngineProcess living(alive.pid(), PidfdOf(alive.pid()));
  there = {theirs.data(), 100}, here = {ours.data(), 100};
  REQUIRE(living.Read({&there, 1}, {&here, 1}) == absl::OkStatus());
  CHECK(ours == std::vector<std::byte>(100));
}

TEST_CASE("EngineProcess tells the NUMA node of a page that is there") {
  const HoleyPages pages;
  const EngineProcess self(::getpid(), PidfdOf(::getpid()));
  CHECK((self.NumaNode(pages.data() + 17) >= 0) == test::TellsNumaNodes());
  CHECK(self.NumaNode(pages.data() + HoleyPages::kPage) == -1);
  Sleeper sleeper;
  const EngineProcess other(sleeper.pid(), PidfdOf(sleeper.pid()));
  CHECK(other.NumaNode(pages.data()) == self.NumaNode(pages.data()));
  sleeper.Kill();
  CHECK(other.NumaNode(pages.data()) == -1);
}

TEST_CASE("EngineRegion of a process asks the kernel at both ends, and refuses what are no addresses") {
  const HoleyPages pages;
  const auto self = std::make_shared<const EngineProcess>(::getpid(), PidfdOf(::getpid()));
  const auto address = reinterpret_cast<uint64_t>(pages.data());
  const auto of = [&](uint64_t at, uint64_t length) { return EngineRegion::OfProcess(self, at, {length}).status().code(); };
  CHECK(of(address, HoleyPages::kPage) == absl::StatusCode::kOk);
  CHECK(of(address, 3 * HoleyPages::kPage) == absl::StatusCode::kOk);  // the hole shows when it is copied
  CHECK(of(address, HoleyPages::kPage + 1) == absl::StatusCode::kOutOfRange);
  CHECK(of(address + HoleyPages::kPage, HoleyPages::kPage + 1) == absl::StatusCode::kOutOfRange);
  CHECK(of(0, 4096) == absl::StatusCode::kOutOfRange);
  CHECK(of(uint64_t{1} << 63, 4096) == absl::StatusCode::kOutOfRange);
  CHECK(of(address, 0) == absl::StatusCode::kInvalidArgument);
  CHECK(of(address, UINT64_MAX) == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("SharedMemoryEngine ends a copy with OutOfRange when a process unmaps its memory, and goes on with others") {
  for (const Direction direction : {Direction::kLoad, Direction::kStore}) {
    KvWorld world(KnownLayouts()[12], Seal::kProcess, 8, 1), other(KnownLayouts()[0], Seal::kProcess, 2, 1);
    Rng rng(1);
    Ends ends;
    const auto engine = MakeSharedMemoryEngine({.threads = 1, .cpus = {}}, ends.Listener());
    Copy copy = world.MakeCopy({1, 1}, direction, {0, 1, 2, 3, 4, 5, 6, 7}, rng);
    const auto gate = std::make_shared<Gate>(1);
    copy.progress = gate;
    engine->Submit(std::move(copy));
    gate->WaitUntilReached();
    world.Unmap(world.layout().layers.back().region);
    gate->Open();
    CHECK(ends.Wait({1, 1}).code() == absl::StatusCode::kOutOfRange);
    CHECK(gate->layers() < world.layers());
    Copy late = other.MakeCopy({2, 1}, direction, {0, 1}, rng);
    KvWorld::Image expected = other.Snapshot();
    other.Apply(late, &expected);
    engine->Submit(std::move(late));
    CHECK(ends.Wait({2, 1}) == absl::OkStatus());
    CHECK(other.Snapshot() == expected);
  }
}

}  // namespace
}  // namespace kvist::cuda
