#ifndef KVIST_DAEMON_CORE_REUSE_RATES_H_
#define KVIST_DAEMON_CORE_REUSE_RATES_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvist::core {

// How soon chunks of a class are used again, by the time since their last use, and what keeping one longer is worth: expected hits
// per unit of residency (LHD: Beckmann, Chen, Cidon, NSDI'18).
//
// Time is counted in chunks stored. A rate of hits is estimated for each class and age as hits / time that chunks of that class have
// spent at that age, resident or remembered; so chunks that are still waiting count as well (Kaplan and Meier's censoring), and
// nothing has to be evicted first to be judged. Where a class has seen little it is believed to be like all classes together, and
// where an age has been seen by none, like the age before.
//
// What it is worth to keep a chunk of some age is the best that can be had by keeping it until some later age, and no longer: the
// largest, over such horizons, of expected hits / expected time kept (Gittins' index). LHD's own figure has the longest horizon for
// all, which undervalues chunks that either return soon or never.
// Threads: one.
class ReuseRates {
 public:
  // Two ages to an octave: [2^(b/2), 2^((b+1)/2)) chunks stored ago.
  static constexpr uint32_t kAges = 72;  // 2^36: nobody waits that long
  static uint32_t AgeOf(uint64_t stored_since);

  // A new class, in the order of their numbers.
  void AddClass() { classes_.push_back(std::make_unique<Class>()); }
  uint32_t classes() const { return static_cast<uint32_t>(classes_.size()); }

  void Hit(uint32_t of_class, uint32_t age) { classes_[of_class]->hits[age] += 1; }
  // Chunks have spent `waited` chunks * stored at that age.
  void Waited(uint32_t of_class, uint32_t age, double waited) { classes_[of_class]->waited[age] += waited; }

  // What all classes together say of ages [first, last]; Judge builds on it. The older their evidence, the less it counts then.
  void JudgeAll(uint32_t first, uint32_t last);
  // Judges one class anew by what is known now.
  void Judge(uint32_t of_class, uint32_t first, uint32_t last);

  // Expected hits per chunk stored, as of the last Judge.
  float worth(uint32_t of_class, uint32_t age) const { return classes_[of_class]->worth[age]; }

  uint64_t memory_bytes() const { return classes_.size() * sizeof(Class); }

 private:
  struct Class {
    std::array<double, kAges> hits{};
    std::array<double, kAges> waited{};
    std::array<float, kAges> worth{};
  };
  std::vector<std::unique_ptr<Class>> classes_;
  std::array<double, kAges> rate_of_all_{};
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_REUSE_RATES_H_
