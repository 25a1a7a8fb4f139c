#ifndef KVIST_CUDA_SLEEPERS_H_
#define KVIST_CUDA_SLEEPERS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kvist::cuda {

// Threads that sleep until somebody has work for them, who calls those that can begin at once.
//
// Linux wakes a thread where it ran last unless it finds an idle CPU; and in a virtual machine it takes a CPU that is idle, and that the host has
// therefore put to other use, for one that can't be had (vcpu_is_preempted). So a thread that last ran on its caller's CPU waits until the caller
// sleeps: up to half a millisecond where a disk's thread checks what has come. Those that ran elsewhere are called first.
//
// Threads: any, with the owner's mutex held. Wake needs it not, and several had better be woken without it: they would queue for it one behind the other.
class Sleepers {
 public:
  // Until it is called (or, seldom, for nothing), or for so long: then false.
  bool Sleep(absl::Mutex* mutex, absl::Duration at_most);

  // Of those that sleep, so many at most; each is to be woken.
  using Called = absl::InlinedVector<absl::CondVar*, 4>;
  Called Call(uint64_t threads);
  static void Wake(const Called& called) {
    for (absl::CondVar* const bell : called) bell->Signal();
  }

 private:
  struct Bed {
    absl::CondVar bell;
    int cpu = -1;  // where its sleeper ran last
    bool called = false;
  };
  std::deque<Bed> beds_;  // never fewer: one that is called may be gone before it is woken
  std::vector<Bed*> free_;
  std::vector<Bed*> asleep_;
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_SLEEPERS_H_
