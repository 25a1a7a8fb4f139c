#ifndef KVIST_TESTS_SUPPORT_FAULT_PLAN_H_
#define KVIST_TESTS_SUPPORT_FAULT_PLAN_H_

#include <atomic>
#include <cstdint>

namespace kvist::test {

// Which reads of a kvistd_faulty's disk fail, in a file that it shares with whoever has started it (SharedFile).
struct FaultPlan {
  std::atomic<uint32_t> one_in;    // reads fail with EIO, one of so many, evenly; 0: none
  std::atomic<uint64_t> injected;  // so many did
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_FAULT_PLAN_H_
