#ifndef KVIST_DAEMON_CORE_LEARNED_COST_H_
#define KVIST_DAEMON_CORE_LEARNED_COST_H_

#include <array>
#include <cstdint>

namespace kvist::core {

// A cost that is about linear in two amounts, a * x + b * y with neither a nor b below zero, learned from what the last things did cost:
// least squares of the relative errors, so that a small thing tells as much as a large one. While x and y can't be told apart all is x.
//
// Cost: a hundred nanoseconds a measurement.
// Threads: one.
class LearnedCost {
 public:
  static constexpr uint32_t kEnough = 4;  // measurements: the first of an engine or a disk may be of warming up
  static constexpr uint32_t kKept = 64;   // and no more

  // Amounts of at least 0, not both 0, and a cost above 0; anything else is ignored.
  void Learn(double x, double y, double cost);
  // Before that its word is nobody's.
  bool known() const { return learned_ >= kEnough; }
  double Of(double x, double y) const { return a_ * x + b_ * y; }

 private:
  void Solve();

  struct Measured {
    double x = 0, y = 0;  // for a cost of 1
  };
  std::array<Measured, kKept> last_{};
  uint64_t learned_ = 0;
  double a_ = 0, b_ = 0;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_LEARNED_COST_H_
