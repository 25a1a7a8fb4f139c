#ifndef KVIST_TESTS_BENCH_COLD_CACHE_H_
#define KVIST_TESTS_BENCH_COLD_CACHE_H_

#include <cstddef>
#include <vector>

namespace kvist::bench {

// Takes what was used out of the processor's caches: some machines' are larger than an index of a million chunks.
class ColdCache {
 public:
  // Of one processor's last cache; 0: the C library doesn't know.
  static size_t LastCacheBytes();

  ColdCache();
  // Writes as much memory as the last cache has, and a half more, at most 1 GiB: 0.1 s where it has 480 MiB.
  void Walk();

 private:
  std::vector<std::byte> memory_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_COLD_CACHE_H_
