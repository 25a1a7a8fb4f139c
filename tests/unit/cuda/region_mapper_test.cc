// What is in memory of an engine's region is in this process's page tables before a copy needs it, and nothing else is brought into memory.
#include "cuda/region_mapper.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "storage/base/unique_fd.h"
#include "tests/support/sanitizers.h"

namespace kvist::cuda {
namespace {

constexpr size_t kPage = 4096;

// A sealed memfd, and kvistd's mapping of it.
struct Region {
  explicit Region(size_t length) : fd(::memfd_create("engine", MFD_ALLOW_SEALING)) {
    REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(length)) == 0);
    REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    absl::StatusOr<EngineRegion> region = EngineRegion::OfFile(UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3)));
    REQUIRE(region.ok());
    memory = std::make_shared<KvMemory>();
    memory->regions.push_back(*std::move(region));
  }
  std::byte* data() const { return std::get<MappedRegion>(memory->regions[0].way()).mapping.data(); }
  // As its engine does.
  void Write(size_t page, size_t pages = 1) const {
    const std::vector<char> bytes(pages * kPage, 'x');
    REQUIRE(::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(page * kPage)) ==
            static_cast<ssize_t>(bytes.size()));
  }
  int64_t blocks() const {
    struct stat file {};
    REQUIRE(::fstat(fd.get(), &file) == 0);
    return file.st_blocks;
  }

  UniqueFd fd;
  std::shared_ptr<KvMemory> memory;
};

// Which pages are in this process's page tables.
std::vector<bool> Mapped(const std::byte* at, size_t pages) {
  const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  REQUIRE(pagemap.get() >= 0);
  std::vector<uint64_t> words(pages);
  const auto offset = static_cast<off_t>(reinterpret_cast<uintptr_t>(at) / kPage * sizeof(uint64_t));
  REQUIRE(::pread(pagemap.get(), words.data(), pages * sizeof(uint64_t), offset) ==
          static_cast<ssize_t>(pages * sizeof(uint64_t)));
  std::vector<bool> mapped;
  for (const uint64_t word : words) mapped.push_back((word >> 63) != 0);
  return mapped;
}

template <class Holds>
bool Eventually(Holds holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

int64_t Faults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST_CASE("What an engine has in memory is mapped ahead, and nothing is brought into memory for it") {
  constexpr size_t kPages = 2048 + 3;  // a last piece of less than 2 MiB
  const Region region(kPages * kPage);
  region.Write(0, 1024);
  region.Write(1537);
  region.Write(kPages - 1);
  std::vector<bool> wanted(kPages);
  for (size_t page = 0; page < kPages; ++page) wanted[page] = page < 1024 || page == 1537 || page == kPages - 1;
  const int64_t blocks = region.blocks();
  REQUIRE(Mapped(region.data(), kPages) == std::vector<bool>(kPages));

  RegionMapper mapper;
  mapper.Add(region.memory);
  CHECK(Eventually([&] { return Mapped(region.data(), kPages) == wanted; }));
  CHECK(region.blocks() == blocks);
  const int64_t before = Faults();
  for (size_t page = 0; page < 1024; ++page)
    *reinterpret_cast<volatile std::byte*>(region.data() + page * kPage) = std::byte{1};
  if (!test::kSanitized) CHECK(Faults() - before < 16);  // a sanitizer's shadow of them has pages of its own
}

TEST_CASE("Memory of several engines is mapped, and that of one that has ended isn't waited for") {
  std::vector<std::unique_ptr<Region>> regions;
  RegionMapper mapper;
  for (int engine = 0; engine < 8; ++engine) {
    regions.push_back(std::make_unique<Region>(512 * kPage));
    regions.back()->Write(0, 512);
    mapper.Add(regions.back()->memory);
    if (engine % 2 == 1) regions.pop_back();
  }
  for (const auto& region : regions) {
    CHECK(Eventually([&] { return Mapped(region->data(), 512) == std::vector<bool>(512, true); }));
    CHECK(Eventually([&] { return region->memory.use_count() == 1; }));
  }
}

TEST_CASE("The mapper ends in the middle of a large memory") {
  constexpr size_t kPages = 16384;
  bool in_the_middle = false;
  for (int i = 0; i < 20 && !in_the_middle; ++i) {  // it may have been at its end before this thread had a processor again
    const Region region(kPages * kPage);
    region.Write(0, kPages);
    {
      RegionMapper mapper;
      mapper.Add(region.memory);
      REQUIRE(Eventually([&] { return Mapped(region.data(), 1) == std::vector<bool>{true}; }));
    }
    const std::vector<bool> mapped = Mapped(region.data(), kPages);
    in_the_middle = std::count(mapped.begin(), mapped.end(), false) > 0;
    CHECK(region.memory.use_count() == 1);
  }
  CHECK(in_the_middle);
}

}  // namespace
}  // namespace kvist::cuda
