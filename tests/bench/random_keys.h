#ifndef KVIST_TESTS_BENCH_RANDOM_KEYS_H_
#define KVIST_TESTS_BENCH_RANDOM_KEYS_H_

#include <kvist/kvist.h>

#include <cstring>
#include <random>
#include <vector>

namespace kvist::bench {

// Keys that nobody has used. A daemon can't tell them from those of a chain: both are uniform bits.
inline std::vector<kvist_key> RandomKeys(std::mt19937_64& random, size_t count) {
  std::vector<kvist_key> keys(count);
  for (kvist_key& key : keys) {
    for (size_t at = 0; at < sizeof key.bytes; at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(key.bytes + at, &word, sizeof word);
    }
  }
  return keys;
}

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_RANDOM_KEYS_H_
