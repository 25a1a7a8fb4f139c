#ifndef KVIST_EXAMPLES_REPLAY_PROGRESS_H_
#define KVIST_EXAMPLES_REPLAY_PROGRESS_H_

#include <chrono>
#include <cstdint>

namespace kvist::replay {

// How far the replay is, on stderr: a bar that is redrawn when that is a terminal, else a plain line every 10 s.
// Lifecycle: create -> Show often -> the destructor removes the bar. Threads: one.
class Progress {
 public:
  explicit Progress(uint64_t requests);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(uint64_t done, double hit_ratio);

 private:
  using Clock = std::chrono::steady_clock;

  const uint64_t requests_;
  const bool terminal_;
  const Clock::duration interval_;
  Clock::time_point next_;
  bool drawn_ = false;
};

}  // namespace kvist::replay

#endif  // KVIST_EXAMPLES_REPLAY_PROGRESS_H_
