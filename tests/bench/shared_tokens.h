#ifndef KVIST_TESTS_BENCH_SHARED_TOKENS_H_
#define KVIST_TESTS_BENCH_SHARED_TOKENS_H_

#include <cstdint>
#include <vector>

#include "examples/replay/trace.h"

namespace kvist::bench {

// Of one request: how many of its prompt's tokens were computed before, were everything kept.
struct SharedTokens {
  uint64_t tokens = 0;
  uint64_t shared = 0;
  bool goes_on = false;  // where an earlier request ended: the next turn of a conversation
};

// For each request of the trace, in order. The trace tells of whole blocks of 512 tokens only. Where a prompt begins with all full blocks of an
// earlier one, at least two, it is taken to go on with the rest of that prompt and its answer; elsewhere what is shared of the block
// that differs isn't known, and counts as nothing.
std::vector<SharedTokens> FindSharedTokens(const replay::Trace& trace);

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_SHARED_TOKENS_H_
