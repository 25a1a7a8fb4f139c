#include "tests/bench/told_directory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "storage/base/status.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kPrompts = 256;
constexpr uint32_t kPromptChunks = 64;
constexpr double kSharedPart = 0.4;
constexpr double kHolders = 4;  // of a shared chain, on average
constexpr uint64_t kSharedChains = uint64_t{1} << 40;

uint64_t Mix(uint64_t x) {  // any two numbers give two that have nothing in common
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

}  // namespace

ChunkKey ToldDirectory::KeyOf(uint64_t chain, uint32_t position) const {
  const bool prompt = shape_.sharing == Sharing::kSome && position < kPromptChunks;
  uint64_t x = Mix((prompt ? chain % kPrompts : chain + kPrompts) * 0x9e3779b97f4a7c15 + position);
  ChunkKey key;
  for (size_t at = 0; at < key.bytes.size(); at += sizeof x) {
    std::memcpy(key.bytes.data() + at, &x, sizeof x);
    x = x * 0xd6e8feb86659fd93 + 0x9e3779b97f4a7c15;
  }
  return key;
}

ToldDirectory::ToldDirectory(const Shape& shape) : shape_(shape) {
  std::mt19937_64 random(5);
  nodes_.resize(shape.nodes);
  space_.bytes[0] = 1;
  const uint64_t fresh = shape.sharing == Sharing::kSome ? kChainChunks - kPromptChunks : kChainChunks;
  const uint64_t chains = (shape.chunks + fresh - 1) / fresh;
  const double shared = std::max(1.0, kSharedPart * static_cast<double>(chains * shape.nodes) / kHolders);
  for (uint32_t n = 0; n < shape.nodes; ++n) {
    nodes_[n].epoch = n;
    std::unordered_set<uint64_t> mine;
    while (mine.size() < chains) {
      const double u = static_cast<double>(random() >> 11) * 0x1p-53;
      switch (shape.sharing) {
        case Sharing::kNone: mine.insert(n * chains + mine.size()); break;
        case Sharing::kAll: mine.insert(mine.size()); break;
        case Sharing::kSome:
          if (u < kSharedPart) {  // the popular ones more often: density 1 / sqrt
            mine.insert(kSharedChains + static_cast<uint64_t>(u * u / (kSharedPart * kSharedPart) * shared));
          } else {
            mine.insert(random() % kSharedChains);
          }
      }
    }
    nodes_[n].chains.assign(mine.begin(), mine.end());
    std::ranges::sort(nodes_[n].chains);
    std::ranges::shuffle(nodes_[n].chains, random);
  }
}

absl::StatusOr<std::unique_ptr<ToldDirectory>> ToldDirectory::Create(const Shape& shape) {
  auto told = std::unique_ptr<ToldDirectory>(new ToldDirectory(shape));
  for (uint32_t n = 0; n < shape.nodes; ++n) {
    KVIST_ASSIGN_OR_RETURN(told->nodes_[n].id, told->directory_.Meet(std::to_string(n)));
    KVIST_RETURN_IF_ERROR(told->TellAll(n, [] {}));
  }
  for (const auto& node : told->directory_.Nodes()) told->pairs_ += node.chunks;
  return told;
}

absl::Status ToldDirectory::Begin(Node* node) {
  ++node->epoch;
  node->sequence = 0;
  node->away.clear();
  KVIST_RETURN_IF_ERROR(directory_.Hear(node->id, controller::SnapshotBegin{node->epoch, 0}));
  return directory_.Hear(
      node->id, controller::SpaceIntroduced{node->epoch, SpaceId{0}, space_, "tenant", "model", Tokens{256}, {ReuseRule{}}});
}

ToldDirectory::Chain ToldDirectory::Any(std::mt19937_64& random) const {
  const auto node = static_cast<uint32_t>(random() % nodes_.size());
  return {node, nodes_[node].chains[random() % nodes_[node].chains.size()]};
}

std::vector<ChunkKey> ToldDirectory::KeysOf(uint64_t chain) const {
  std::vector<ChunkKey> keys;
  for (uint32_t k = 0; k < kChainChunks; ++k) keys.push_back(KeyOf(chain, k));
  return keys;
}

std::vector<ChunkKey> ToldDirectory::UnknownKeys(std::mt19937_64& random) const {
  std::vector<ChunkKey> keys(kChainChunks);
  for (ChunkKey& key : keys) {
    for (size_t at = 0; at < key.bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(key.bytes.data() + at, &word, sizeof word);
    }
  }
  return keys;
}

controller::ChangeBatch ToldDirectory::NextChanges(uint32_t which, uint32_t count, std::mt19937_64& random) {
  Node& node = nodes_[which];
  controller::ChangeBatch batch{node.epoch, node.sequence, node.sequence + count, std::move(node.away)};
  node.away.clear();
  if (batch.chunks.empty()) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t chain = node.chains[random() % node.chains.size()];
      const auto k = static_cast<uint32_t>(kChainChunks / 2 + random() % (kChainChunks / 2));
      node.away.push_back({SpaceId{0}, GroupId{0}, KeyOf(chain, k), controller::TierSet{static_cast<uint8_t>(1 + k % 3)}});
    }
    batch.chunks = node.away;
    for (controller::ChunkState& chunk : batch.chunks) chunk.tiers = {};
  }
  node.sequence = batch.up_to;
  return batch;
}

}  // namespace kvist::bench
