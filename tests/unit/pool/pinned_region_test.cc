#include "storage/pool/pinned_region.h"

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "storage/base/clock.h"
#include "storage/pool/memory_file.h"
#include "tests/support/child_process.h"
#include "tests/support/sanitizers.h"

namespace kvist::pool {
namespace {

std::unique_ptr<PinnedRegion> Make(PinnedRegion::Options options) {
  auto region = PinnedRegion::Create(options);
  INFO(region.status().ToString());
  REQUIRE(region.ok());
  return std::move(*region);
}

bool BecomesTouched(const PinnedRegion& region) {
  const absl::Time deadline = MonotonicNow() + absl::Seconds(120);
  while (!region.fully_touched()) {
    if (MonotonicNow() > deadline) return false;
    poll(nullptr, 0, 1);  // lets the threads of the lowest priority run
  }
  return true;
}

// The figures of /proc/self/smaps for the mapping that starts at `data`: resident kB and the flags of it.
struct Smaps {
  uint64_t resident_kb = 0;
  uint64_t hugetlb_kb = 0;
  std::string flags;
};
Smaps ReadSmaps(const void* data) {
  char start[32];
  std::snprintf(start, sizeof start, "%lx-", reinterpret_cast<unsigned long>(data));
  std::ifstream file("/proc/self/smaps");
  Smaps smaps;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name.find('-') != std::string::npos) inside = name.starts_with(start);
    if (!inside) continue;
    if (name == "Rss:") words >> smaps.resident_kb;
    if (name == "Private_Hugetlb:") words >> smaps.hugetlb_kb;
    if (name == "VmFlags:") smaps.flags = line + " ";
  }
  return smaps;
}

TEST_CASE("PinnedRegion is zeroed memory on a boundary of huge pages, as long as asked, up to 2 MiB more") {
  const auto region = Make({.length = MiB(5), .touch_threads = 0, .lock = false});
  CHECK(region->length() == MiB(6));
  CHECK(reinterpret_cast<uintptr_t>(region->data()) % MiB(2).value == 0);
  CHECK(region->touched() == Bytes{});
  for (uint64_t at = 0; at < region->length().value; at += 4096) REQUIRE(region->data()[at] == std::byte{0});
  std::memset(region->data(), 0xab, region->length().value);
  CHECK_FALSE(region->fully_touched());  // nobody pre-touches
}

TEST_CASE("PinnedRegion becomes resident in the background, is locked when allowed, and stays out of core dumps") {
  const uint32_t threads = GENERATE(1u, 100u);
  const auto region = Make({.length = MiB(130), .touch_threads = threads});
  REQUIRE(BecomesTouched(*region));
  CHECK(region->touched() == MiB(130));
  const Smaps smaps = ReadSmaps(region->data());
  const PinnedRegion::Report& report = region->report();
  CHECK(smaps.resident_kb + smaps.hugetlb_kb >= 130 << 10);
  CHECK(smaps.flags.find(" dd ") != std::string::npos);
  if (report.huge_pages_guaranteed) {
    CHECK(smaps.hugetlb_kb == 130 << 10);
    CHECK(report.locked);
  } else {
    CHECK(report.locked == (smaps.flags.find(" lo ") != std::string::npos));
    CHECK((report.page_size == MiB(2)) == (smaps.flags.find(" hg ") != std::string::npos));
  }
  // Whatever wasn't granted has its sentence.
  CHECK(report.warnings.size() == (report.locked ? 0u : 1u) + (report.page_size == MiB(2) ? 0u : 1u));
}

TEST_CASE("PinnedRegion doesn't change bytes that are written while it is being touched") {
  const auto region = Make({.length = MiB(128), .touch_threads = 2});
  const auto pattern = [](uint64_t i) { return i * 0x9e3779b97f4a7c15ull | 1; };  // never a zero byte at a page's start
  auto* words = reinterpret_cast<uint64_t*>(region->data());
  const uint64_t count = region->length() / Bytes{8};
  // From the back, so that the touching threads meet the writer in the middle, and also from the front, on their heels.
  for (uint64_t i = 0, j = count; i < j;) {
    words[i] = pattern(i);
    ++i;
    if (i < j) {
      --j;
      words[j] = pattern(j);
    }
  }
  REQUIRE(BecomesTouched(*region));
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < count; ++i) wrong += words[i] != pattern(i);
  CHECK(wrong == 0);
}

uint64_t PageFaults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_minflt);
}

TEST_CASE("PinnedRegion stops touching when it is destroyed") {
  if (test::kThreadSanitizer) return;  // its shadow of each new thread is page faults, too
  uint64_t start = PageFaults();
  REQUIRE(BecomesTouched(*Make({.length = MiB(128)})));
  const uint64_t whole = PageFaults() - start;

  // If each of these were touched to the end it would be ten times as many.
  start = PageFaults();
  for (int i = 0; i < 10; ++i) Make({.length = MiB(128)});
  CHECK(PageFaults() - start < 4 * whole);
}

TEST_CASE("PinnedRegion refuses what can't be and names the setting") {
  CHECK(PinnedRegion::Create({.length = {}}).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(PinnedRegion::Create({.length = MiB(2), .numa_node = 4096}).status().code() == absl::StatusCode::kInvalidArgument);
  for (Bytes length : {GiB(128 << 10), Bytes{~0ull}}) {
    const absl::Status status = PinnedRegion::Create({.length = length}).status();
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    CHECK(std::string(status.message()).find("pool.bytes") != std::string::npos);
  }
}

TEST_CASE("PinnedRegion serves unlocked and says how to raise RLIMIT_MEMLOCK") {
  CHECK(test::InChild([] {
          const rlimit small{.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
          if (setrlimit(RLIMIT_MEMLOCK, &small) != 0) return 2;
          if (geteuid() == 0 && setuid(65534) != 0) return 3;  // gives CAP_IPC_LOCK away
          auto region = PinnedRegion::Create({.length = MiB(8), .touch_threads = 0});
          if (!region.ok()) return 4;
          const PinnedRegion::Report& report = (*region)->report();
          if (report.huge_pages_guaranteed) return 0;  // never swapped, nothing to lock
          if (report.locked || report.warnings.empty()) return 5;
          const std::string& warning = report.warnings.back();
          for (const char* word : {"RLIMIT_MEMLOCK is 65536", "LimitMEMLOCK=infinity", "ulimit -l"}) {
            if (warning.find(word) == std::string::npos) return 6;
          }
          (*region)->data()[0] = std::byte{1};
          return 0;
        }) == 0);
}

TEST_CASE("PinnedRegion refuses what the address space limit doesn't allow") {
  if (test::kSanitized) {
    std::printf("skipped: sanitizers need more address space than any limit leaves them\n");
    return;
  }
  CHECK(test::InChild([] {
          const rlimit small{.rlim_cur = 256 << 20, .rlim_max = 256 << 20};
          if (setrlimit(RLIMIT_AS, &small) != 0) return 2;
          const absl::Status status = PinnedRegion::Create({.length = MiB(512), .touch_threads = 0}).status();
          const bool named = std::string(status.message()).find("RLIMIT_AS") != std::string::npos;
          return status.code() == absl::StatusCode::kResourceExhausted && named ? 0 : 3;
        }) == 0);
}

TEST_CASE("What lies in a file of memory is there for the next region") {
  absl::StatusOr<UniqueFd> file = CreateMemoryFile("pool", MiB(5));
  REQUIRE(file.ok());
  {
    const auto region = Make({.length = MiB(5), .file = file->get()});
    CHECK(region->length() == MiB(6));
    region->data()[MiB(5).value + 7] = std::byte{42};
    CHECK(BecomesTouched(*region));
  }
  const auto region = Make({.length = MiB(5), .file = file->get()});
  CHECK(BecomesTouched(*region));
  CHECK(region->data()[MiB(5).value + 7] == std::byte{42});
  CHECK(region->data()[MiB(5).value + 8] == std::byte{0});
  CHECK(PinnedRegion::Create({.length = MiB(8), .file = file->get()}).status().code() == absl::StatusCode::kInvalidArgument);
  const bool small = region->report().page_size == kPageOfMemory;
  CHECK(MemoryFileHasSmallPages(MiB(5)) == (small && Make({.length = MiB(5)})->report().page_size != kPageOfMemory));
}

TEST_CASE("UsableNumaNodes names nodes on which a region can be made") {
  const std::vector<int> nodes = UsableNumaNodes();
  REQUIRE_FALSE(nodes.empty());
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i > 0) CHECK(nodes[i] > nodes[i - 1]);
    const auto region = Make({.length = MiB(4), .numa_node = nodes[i]});
    CHECK(BecomesTouched(*region));
    for (const std::string& warning : region->report().warnings) CHECK(warning.find("NUMA") == std::string::npos);
  }
}

}  // namespace
}  // namespace kvist::pool
