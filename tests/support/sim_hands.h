#ifndef KVIST_TESTS_SUPPORT_SIM_HANDS_H_
#define KVIST_TESTS_SUPPORT_SIM_HANDS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "storage/ssd/hands.h"
#include "tests/sim/prng.h"

namespace kvist::test {

// Hands that do one thing after the other, which comes next is chance: the first task of a queue, a device's turn, or what else was
// added. A task that waits keeps its place on the stack, and others are done until what it waits for has come.
//
// A crash is an exception, thrown between two things or where a store says that a crash can come: what it unwinds is never gone on with.
// Threads: one. Deterministic.
class SimHands final : public ssd::Hands {
 public:
  struct Crash {};
  struct Stuck {};  // something is waited for, and doesn't come

  // Borrows `prng`.
  explicit SimHands(sim::Prng* prng) : prng_(*prng) {}

  // Does one thing of somebody else's; false: there was none to do.
  void Also(std::function<bool()> work) { others_.push_back({std::move(work), false}); }
  // Whether the device that was the nth to start since Forget is asleep then: it isn't turned.
  void Sleeps(std::function<bool(size_t device, absl::Time now)> sleeps) { sleeps_ = std::move(sleeps); }
  // One thing, and a moment passes; a longer one when there is none to do.
  void Step();
  // After so many steps from now, of Step or of a store (Passed); 0: never.
  void CrashAfter(uint64_t steps) { crash_in_ = steps; }
  // A crash can come here.
  void Passed();
  // Forgets queues and devices: those that they were of have died.
  void Forget();

  absl::Time Now() override { return now_; }
  std::unique_ptr<ssd::TaskQueue> MakeQueue() override;
  void Start(ssd::StoreDevice* device) override;
  void Join(ssd::StoreDevice* device) override;
  void Await(const absl::Notification& done) override;
  uint32_t threads() const override { return 0; }

 private:
  class Queue;
  struct Device {
    ssd::StoreDevice* device;
    size_t nth = 0;
    bool begun = false;
  };
  struct Other {
    std::function<bool()> work;
    bool busy;  // it waits
  };
  bool Try(size_t actor);
  template <class Ended>
  void GoOnUntil(Ended ended);

  sim::Prng& prng_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  uint64_t crash_in_ = 0;
  std::vector<Queue*> queues_;
  std::vector<Device> devices_;
  size_t started_ = 0;
  std::function<bool(size_t device, absl::Time now)> sleeps_;
  std::vector<Other> others_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_SIM_HANDS_H_
