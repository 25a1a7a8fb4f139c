#include "storage/base/usable_cpus.h"

#include <sched.h>

#include <cstddef>
#include <thread>

#include "absl/strings/str_cat.h"

namespace kvist {

std::vector<int> UsableCpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  bool known = false;
  // A thread that is let onto all of them is let onto those that its cpuset has, also where its process began with fewer (taskset,
  // isolcpus). It fails where the kernel knows of more CPUs than a cpu_set_t has room for; then none is known to be forbidden.
  std::thread([&] {
    cpu_set_t all;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
    (void)sched_setaffinity(0, sizeof all, &all);
    known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  }).join();
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!known || CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  return cpus;
}

std::string PrintRanges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ", ", numbers[i]);
    if (last > i) absl::StrAppend(&text, "-", numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace kvist
