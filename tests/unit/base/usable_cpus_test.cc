#include "storage/base/usable_cpus.h"

#include <sched.h>

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

namespace kvist {
namespace {

TEST_CASE("UsableCpus are those that this thread can be pinned to") {
  const std::vector<int> cpus = UsableCpus();
  REQUIRE_FALSE(cpus.empty());
  std::vector<int> pinned;
  std::thread([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus.back(), &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0) pinned = UsableCpus();
  }).join();
  CHECK(pinned == std::vector<int>{cpus.back()});
  CHECK(UsableCpus() == cpus);
}

TEST_CASE("PrintRanges writes neighbours as one range") {
  CHECK(PrintRanges({}).empty());
  CHECK(PrintRanges({5}) == "5");
  CHECK(PrintRanges({0, 1}) == "0-1");
  CHECK(PrintRanges({0, 2, 3, 4, 9}) == "0, 2-4, 9");
}

}  // namespace
}  // namespace kvist
