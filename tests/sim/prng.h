#ifndef KVIST_TESTS_SIM_PRNG_H_
#define KVIST_TESTS_SIM_PRNG_H_

#include <cstdint>

namespace kvist::sim {

// The only source of chance in a simulated run: splitmix64, so that a seed means the same run with every library.
// Threads: one.
class Prng {
 public:
  explicit Prng(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 0x632be59bd9b4e019) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, n); n > 0. (The bias of the remainder is below 2^-32 here and harms nothing.)
  uint32_t Below(uint64_t n) { return static_cast<uint32_t>(Next() % n); }
  // In [low, high].
  uint32_t Between(uint32_t low, uint32_t high) { return low + Below(high - low + 1); }
  bool Percent(uint32_t percent) { return Below(100) < percent; }
  template <class Container>
  auto& Pick(Container& from) {
    return from[Below(from.size())];
  }

 private:
  uint64_t state_;
};

}  // namespace kvist::sim

#endif  // KVIST_TESTS_SIM_PRNG_H_
