#include "storage/base/usable_cpus.h"

#include <sched.h>

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

namespace kvist {
namespace {

TEST_CASE("UsableCpus are those that a thread can be pinned to, also when asked by one that is pinned itself") {
  const std::vector<int> cpus = UsableCpus();
  REQUIRE_FALSE(cpus.empty());
  std::vector<int> asked_pinned, can;
  std::thread([&] {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cpu, &set);
      if (sched_setaffinity(0, sizeof set, &set) == 0) can.push_back(cpu);
    }
    asked_pinned = UsableCpus();
  }).join();
  CHECK(cpus == can);
  CHECK(asked_pinned == cpus);
}

TEST_CASE("PrintRanges writes neighbours as one range") {
  CHECK(PrintRanges({}).empty());
  CHECK(PrintRanges({5}) == "5");
  CHECK(PrintRanges({0, 1}) == "0-1");
  CHECK(PrintRanges({0, 2, 3, 4, 9}) == "0, 2-4, 9");
}

}  // namespace
}  // namespace kvist
