#ifndef KVIST_DAEMON_SESSION_PACING_H_
#define KVIST_DAEMON_SESSION_PACING_H_

#include <algorithm>
#include <cstdint>

namespace kvist::session {

// Whether a thread that polls should go on looking or sleep: it spins when work came soon after work the last times, because then
// looking is cheaper than being woken, and for as long as a wake-up would take.
//
// Threads: one.
class Pacing {
 public:
  // As long as a wake-up across cores takes on a VM (reference/limits.md: 30 to 55 us).
  static constexpr int64_t kSpinNanos = 50'000;

  explicit Pacing(int64_t now) : busy_until_(now), turn_(now) {}

  // A turn begins: the last one's work, if it did any, ended here.
  void Turn(int64_t now) {
    if (worked_) busy_until_ = now;
    turn_ = now;
    worked_ = false;
  }

  // The turn did work.
  void Worked() {
    soon_ = turn_ - busy_until_ <= kSpinNanos ? std::min(soon_ + 1, kSoonMax) : soon_ / 2;
    worked_ = true;
  }

  // Whether to look once more instead of sleeping.
  bool Spin() const { return soon_ >= kSoonMax / 2 && (worked_ || turn_ - busy_until_ < kSpinNanos); }

  // The thread sleeps instead: its work ends now.
  void Sleeps() { Turn(turn_); }

 private:
  static constexpr uint32_t kSoonMax = 8;

  int64_t busy_until_;
  int64_t turn_;
  bool worked_ = false;
  uint32_t soon_ = 0;  // how often lately work came within kSpinNanos
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_PACING_H_
