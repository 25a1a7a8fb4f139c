#ifndef KVIST_TESTS_BENCH_OPTIMAL_H_
#define KVIST_TESTS_BENCH_OPTIMAL_H_

#include <cstdint>
#include <span>
#include <vector>

namespace kvist::bench {

// The most blocks that any cache of `capacity` blocks could have had on arrival, over all requests: Belady's rule, the block that is
// needed last goes first, and of those that are needed at the same time the deepest. What hangs on a block is never needed
// earlier than it, so what stays always has its prefix; and no rule that must keep prefixes does better (optimal_test.cc
// tries all).
//
// A request is a path in the tree of prefixes, each block by its id; it hits its leading blocks that are there. All its blocks can be
// kept afterwards, and needn't be.
uint64_t OptimalHits(std::span<const std::vector<uint64_t>> requests, uint64_t capacity);

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_OPTIMAL_H_
