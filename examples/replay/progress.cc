#include "examples/replay/progress.h"

#include <unistd.h>

#include <cstdio>
#include <string>

namespace kvist::replay {

Progress::Progress(uint64_t requests)
    : requests_(requests),
      terminal_(isatty(STDERR_FILENO) == 1),
      interval_(terminal_ ? Clock::duration(std::chrono::milliseconds(100)) : Clock::duration(std::chrono::seconds(10))),
      next_(Clock::now() + interval_) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::Show(uint64_t done, double hit_ratio) {
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + interval_;
  const double share = static_cast<double>(done) / static_cast<double>(requests_);
  const auto of_all = static_cast<unsigned long long>(requests_);
  if (!terminal_) {
    std::fprintf(stderr, "%llu of %llu requests, %.1f %% hits\n", static_cast<unsigned long long>(done), of_all,
                 100 * hit_ratio);
    return;
  }
  constexpr size_t kWidth = 40;
  const auto filled = static_cast<size_t>(share * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r[%s] %3.0f %% of %llu requests, %.1f %% hits\033[K", bar.c_str(), 100 * share, of_all,
               100 * hit_ratio);
  drawn_ = true;
}

}  // namespace kvist::replay
