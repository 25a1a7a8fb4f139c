#include "tests/bench/ping_pong.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>

#include "daemon/session/short_slice.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "tests/bench/pinning.h"

namespace kvist::bench {
namespace {

constexpr int64_t kSpinNanos = 50'000;

}  // namespace

PingPong::PingPong(int cpu, Wait wait, Slices slices) : wait_(wait) {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  KVIST_CHECK(memory != MAP_FAILED);
  shared_ = new (memory) Shared;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  KVIST_CHECK(pid_ >= 0);
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) Answer(cpu, slices);
  ::_exit(0);
}

PingPong::~PingPong() {
  shared_->stop.store(true);
  if (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    Round();  // its answer is the last
    ::waitpid(pid_, nullptr, 0);
  }
  ::munmap(shared_, sizeof(Shared));
}

void PingPong::Round() {
  const uint32_t seen = shared_->pong.word.load(std::memory_order_relaxed);
  Publish(shared_->ping, seen + 1);
  Await(shared_->pong, seen);
}

void PingPong::Answer(int cpu, Slices slices) {
  const Pinned pinned(cpu);
  if (slices == Slices::kShort) session::AskForShortSlices();
  for (uint32_t seen = 0;; ++seen) {
    Await(shared_->ping, seen);
    const bool last = shared_->stop.load(std::memory_order_relaxed);  // written before the ping
    Publish(shared_->pong, seen + 1);
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
