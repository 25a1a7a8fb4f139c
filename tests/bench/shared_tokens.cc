#include "tests/bench/shared_tokens.h"

#include <algorithm>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace kvist::bench {
namespace {

constexpr size_t kBlocksMin = 2;  // one is a system prompt that all conversations share

}  // namespace

std::vector<SharedTokens> FindSharedTokens(const replay::Trace& trace) {
  struct Ended {
    uint64_t prompt = 0, all = 0;  // tokens; all: with its answer
  };
  absl::flat_hash_set<uint64_t> seen;
  absl::flat_hash_map<uint64_t, Ended> ended;  // by the last full block: equal ids mean equal prefixes
  std::vector<SharedTokens> found;
  for (const replay::Request& request : trace.requests) {
    const std::span<const uint64_t> full(request.hash_ids.data(), request.full_blocks);
    const auto there = static_cast<size_t>(
        std::find_if(full.begin(), full.end(), [&](uint64_t id) { return !seen.contains(id); }) - full.begin());
    SharedTokens tokens{.tokens = request.tokens, .shared = there * replay::kBlockTokens};
    if (there >= kBlocksMin) {
      const auto turn = ended.find(full[there - 1]);
      if (turn != ended.end() && turn->second.prompt <= request.tokens) {
        tokens.goes_on = true;
        tokens.shared = std::max(tokens.shared, turn->second.all <= request.tokens ? turn->second.all : turn->second.prompt);
      }
    }
    found.push_back(tokens);
    seen.insert(full.begin(), full.end());
    if (!full.empty()) ended[full.back()] = {request.tokens, request.tokens + request.answer_tokens};
  }
  return found;
}

}  // namespace kvist::bench
