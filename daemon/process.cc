#include "daemon/process.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace kvist::daemon {

void IgnoreBrokenPipes() {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
}

void LeaveNoCore() {
  const rlimit none{0, 0};
  if (setrlimit(RLIMIT_CORE, &none) != 0)
    spdlog::warn("RLIMIT_CORE: {}; a core dump would hold users' KV", std::strerror(errno));
  // A handler that cores are piped to gets them all the same (core(5)); then of no memory.
  std::ofstream("/proc/self/coredump_filter") << "0";
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // where it can't, the door says what is missing
}

}  // namespace kvist::daemon
