#ifndef KVIST_DAEMON_CORE_ALLOCATIONS_H_
#define KVIST_DAEMON_CORE_ALLOCATIONS_H_

#include <cstdint>
#include <vector>

#include "daemon/core/chunk_table.h"
#include "daemon/core/owned_table.h"
#include "daemon/core/tenants.h"
#include "storage/base/units.h"

namespace kvist::core {

// Some layers of some chunks of one shard.
struct SwapRange {
  uint32_t shard = 0;
  uint32_t first = 0, count = 0;  // chunks
  uint32_t first_layer = 0, layers = 0;
  bool out = false;  // of the engine: written

  // Whether both at once would tear bytes.
  bool Conflicts(const SwapRange& other) const {
    return (out || other.out) && shard == other.shard && first < other.first + other.count && other.first < first + count &&
           first_layer < other.first_layer + other.layers && other.first_layer < first_layer + layers;
  }
};

// What was swapped of an allocation, and what is being.
//
// What an engine gets back is what it has taken out: a slot's earlier bytes are somebody else's. So each layer of each shard of
// each chunk is either written (a swap-out of it was the last that began, and it is complete) or not, and only what is written goes
// back.
class Swaps {
 public:
  Swaps(uint32_t shards, uint32_t chunks, uint32_t layers)
      : chunks_(chunks), layers_(layers), words_((layers + 63) / 64), written_(size_t{shards} * chunks * words_) {}

  // Whether a copy that runs is in conflict with `range`.
  bool Busy(const SwapRange& range) const;
  // A copy begins that isn't: what it takes out is torn until it is through.
  void Begin(OpId op, const SwapRange& range);
  // It is quiet now. Ignored when it isn't one of these.
  void End(OpId op, bool complete);

  bool Written(const SwapRange& range) const;
  uint32_t layers() const { return layers_; }
  bool quiet() const { return running_.empty(); }

 private:
  struct Running {
    OpId op;
    SwapRange range;
  };
  size_t At(const SwapRange& range, uint32_t chunk) const { return (size_t{range.shard} * chunks_ + chunk) * words_; }
  // Calls f(word, mask) for each word of written_ that the range has layers in.
  template <class F>
  void ForEachWord(const SwapRange& range, F f) const;

  uint32_t chunks_;
  uint32_t layers_;
  uint32_t words_;                 // of a chunk and shard
  std::vector<uint64_t> written_;  // [shard][chunk][word], a bit a layer: a thousand layers are looked at in 16 steps
  std::vector<Running> running_;
};

// A private allocation: slots of chunks without keys, which the instance's engine fills and reads as it likes.
//
// Lifecycle: alive -> freed, or its session is closed: its chunks go, but for those that copies hold -> its last copy is quiet. Till then
//   all its bytes count for its instance and tenant: else a client that frees under copies, again and again, would hold any number.
struct Allocation {
  InstanceId instance;
  SessionId session;  // ends with it
  TenantId tenant;
  GroupId group;
  Bytes bytes{};  // of slots, all shards
  std::vector<ChunkIndex> chunks;
  Swaps swaps;
};

using Allocations = OwnedTable<AllocationId, Allocation>;
inline constexpr size_t kAllocationsPerSession = 4096;

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_ALLOCATIONS_H_
