#include "storage/base/usable_cpus.h"

#include <sched.h>

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace kvist {

std::vector<int> UsableCpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // It fails where the kernel knows of more CPUs than a cpu_set_t has room for; then none is known to be forbidden.
  const bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
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
