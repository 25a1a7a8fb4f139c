#include "tests/bench/optimal.h"

#include <queue>
#include <tuple>

#include "absl/container/flat_hash_map.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kNever = UINT32_MAX;

}  // namespace

uint64_t OptimalHits(std::span<const std::vector<uint64_t>> requests, uint64_t capacity) {
  // Ids as numbers from 0 on, and for each block of each request which request needs it next.
  absl::flat_hash_map<uint64_t, uint32_t> numbers;
  std::vector<std::vector<uint32_t>> paths(requests.size()), next(requests.size());
  for (size_t r = 0; r < requests.size(); ++r) {
    for (const uint64_t id : requests[r])
      paths[r].push_back(numbers.try_emplace(id, static_cast<uint32_t>(numbers.size())).first->second);
  }
  std::vector<uint32_t> needed(numbers.size(), kNever);
  for (size_t r = requests.size(); r-- > 0;) {
    for (const uint32_t block : paths[r]) next[r].push_back(needed[block]);
    for (const uint32_t block : paths[r]) needed[block] = static_cast<uint32_t>(r);
  }

  struct Block {
    bool there = false;
    uint32_t needed = kNever;
  };
  std::vector<Block> blocks(numbers.size());
  std::priority_queue<std::tuple<uint32_t, uint32_t, uint32_t>> last;  // when it is needed, depth, block; some out of date
  uint64_t hits = 0, there = 0;
  for (size_t r = 0; r < requests.size(); ++r) {
    const std::vector<uint32_t>& path = paths[r];
    size_t hit = 0;
    while (hit < path.size() && blocks[path[hit]].there) ++hit;
    hits += hit;
    for (uint32_t depth = 0; depth < path.size(); ++depth) {
      Block& block = blocks[path[depth]];
      there += block.there ? 0 : 1;
      block = {true, next[r][depth]};
      last.emplace(block.needed, depth, path[depth]);
    }
    while (there > capacity) {
      const auto [when, depth, number] = last.top();
      last.pop();
      Block& block = blocks[number];
      if (!block.there || block.needed != when) continue;
      block.there = false;
      --there;
    }
  }
  return hits;
}

}  // namespace kvist::bench
