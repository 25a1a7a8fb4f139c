#ifndef KVIST_TESTS_BENCH_TOLD_DIRECTORY_H_
#define KVIST_TESTS_BENCH_TOLD_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/controller/directory.h"

namespace kvist::bench {

// How the chains of many nodes overlap.
enum class Sharing {
  kNone,  // every chunk is on one node
  // As conversations do: chains begin with one of 256 prompts of 64 chunks, which every node has; of the rest two fifths are chains that several
  // nodes have, four on average and the most popular ones on all.
  kSome,
  kAll,  // every chunk is on every node
};

// A directory that was told the chunks of many nodes, in chains of kChainChunks; no key is kept, all are computed again from their chain's number.
//
// Threads: one; the directory has its own rules.
class ToldDirectory {
 public:
  static constexpr uint32_t kChainChunks = 512;
  static constexpr uint32_t kSliceChunks = 1024;

  struct Shape {
    uint32_t nodes = 64;
    uint64_t chunks = 1'000'000;  // of each, at least
    Sharing sharing = Sharing::kSome;
  };
  // Errors: Internal  the directory refused something.
  static absl::StatusOr<std::unique_ptr<ToldDirectory>> Create(const Shape& shape);

  // A chain that some node has whole: any node's, any of its chains.
  struct Chain {
    uint32_t node = 0;
    uint64_t number = 0;
  };
  Chain Any(std::mt19937_64& random) const;
  // Its keys, and those of one of which nobody has anything.
  std::vector<ChunkKey> KeysOf(uint64_t chain) const;
  std::vector<ChunkKey> UnknownKeys(std::mt19937_64& random) const;

  // All of a node again, as a snapshot in slices; `between` runs after each. Its numbers begin again.
  template <class F>
  absl::Status TellAll(uint32_t node, F between);
  // A batch of changes of a node: chunks of a few of its chains, out of their places and back in the next batch but one.
  controller::ChangeBatch NextChanges(uint32_t node, uint32_t count, std::mt19937_64& random);

  controller::Directory& directory() { return directory_; }
  controller::NodeId node(uint32_t node) const { return nodes_[node].id; }
  const SpaceDigest& space() const { return space_; }
  uint64_t pairs() const { return pairs_; }  // (chunk, node)

 private:
  struct Node {
    controller::NodeId id;
    std::vector<uint64_t> chains;
    uint64_t epoch = 0;
    uint64_t sequence = 0;
    std::vector<controller::ChunkState> away;  // what the last batch took out
  };
  explicit ToldDirectory(const Shape& shape);
  ChunkKey KeyOf(uint64_t chain, uint32_t position) const;
  absl::Status Begin(Node* node);
  // The node's chunks, each once, in slices.
  template <class F>
  absl::Status Slices(const Node& node, F take) const;

  const Shape shape_;
  controller::Directory directory_;
  SpaceDigest space_;
  std::vector<Node> nodes_;
  uint64_t pairs_ = 0;
};

template <class F>
absl::Status ToldDirectory::Slices(const Node& node, F take) const {
  controller::SnapshotSlice slice{node.epoch};
  std::vector<bool> told(256);  // the first chunks that chains share
  for (const uint64_t chain : node.chains) {
    const bool prompt_told = shape_.sharing == Sharing::kSome && told[chain % told.size()];
    told[chain % told.size()] = true;
    for (uint32_t k = prompt_told ? 64 : 0; k < kChainChunks; ++k) {
      slice.chunks.push_back(
          {SpaceId{0}, GroupId{0}, KeyOf(chain, k), controller::TierSet{static_cast<uint8_t>(1 + k % 3)}});
      if (slice.chunks.size() < kSliceChunks) continue;
      if (absl::Status status = take(slice); !status.ok()) return status;
      slice.chunks.clear();
      ++slice.index;
    }
  }
  return take(slice);
}

template <class F>
absl::Status ToldDirectory::TellAll(uint32_t which, F between) {
  Node& node = nodes_[which];
  if (absl::Status status = Begin(&node); !status.ok()) return status;
  uint32_t slices = 0;
  absl::Status told = Slices(node, [&](const controller::SnapshotSlice& slice) {
    ++slices;
    absl::Status status = directory_.Hear(node.id, slice);
    if (status.ok()) between();
    return status;
  });
  if (!told.ok()) return told;
  return directory_.Hear(node.id, controller::SnapshotEnd{node.epoch, slices});
}

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_TOLD_DIRECTORY_H_
