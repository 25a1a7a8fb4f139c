#include "tests/bench/ping_pong.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "storage/base/clock.h"
#include "tests/bench/pinning.h"

namespace kvist::bench {
namespace {

constexpr int64_t kSpinNanos = 50'000;

}  // namespace

PingPong::PingPong(int cpu, Wait wait) : wait_(wait), thread_([this, cpu] { Answer(cpu); }) {}

PingPong::~PingPong() {
  stop_.store(true);
  Round();  // its answer is the last
  thread_.join();
}

void PingPong::Round() {
  const uint32_t seen = pong_.word.load(std::memory_order_relaxed);
  Publish(ping_, seen + 1);
  Await(pong_, seen);
}

void PingPong::Answer(int cpu) {
  const Pinned pinned(cpu);
  for (uint32_t seen = 0;; ++seen) {
    Await(ping_, seen);
    const bool last = stop_.load(std::memory_order_relaxed);  // written before the ping
    Publish(pong_, seen + 1);
    if (last) return;
  }
}

void PingPong::Publish(Side& side, uint32_t round) const {
  side.word.store(round, std::memory_order_seq_cst);
  if (wait_ == Wait::kSleep || side.asleep.load(std::memory_order_seq_cst) != 0)
    ::syscall(SYS_futex, &side.word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void PingPong::Await(Side& side, uint32_t seen) const {
  if (wait_ == Wait::kSpinThenSleep) {
    const int64_t until = MonotonicNanos() + kSpinNanos;
    do {
      for (int i = 0; i < 32; ++i) {
        if (side.word.load(std::memory_order_acquire) != seen) return;
        __builtin_ia32_pause();
      }
    } while (MonotonicNanos() < until);
    side.asleep.store(1, std::memory_order_seq_cst);
  }
  while (side.word.load(std::memory_order_seq_cst) == seen)
    ::syscall(SYS_futex, &side.word, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  if (wait_ == Wait::kSpinThenSleep) side.asleep.store(0, std::memory_order_relaxed);
}

}  // namespace kvist::bench
