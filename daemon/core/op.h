#ifndef KVIST_DAEMON_CORE_OP_H_
#define KVIST_DAEMON_CORE_OP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/core/chunk_table.h"
#include "daemon/core/events.h"
#include "storage/base/ids.h"

namespace kvist::core {

// An operation of an engine between request and answer: a copy that runs, or waits for reads to begin.
struct Op {
  SessionId session;
  RequestTag tag;
  Direction direction = Direction::kLoad;
  // Store: those being filled; load: each, or the deepest of a chained group when that keeps the others.
  std::vector<ChunkIndex> chunks;
  uint32_t copied = 0;  // if it ends well
  uint32_t skipped = 0;
  uint32_t refused = 0;
  AllocationId allocation = {};  // that it swaps, or none
  // A load: the chunks whose reads hadn't begun when it was asked for, and how many still haven't; then it holds each of its chunks.
  std::vector<ChunkIndex> reads = {};
  size_t reads_left = 0;
  bool by_layer = false;                // it is waited for so
  std::vector<SlotRef> slots = {};      // given to its copy; absent while it waits
  std::optional<uint32_t> era = {};     // of a load that has slots (Vacating)
  std::vector<uint32_t> chunk_of = {};  // [slot]
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_OP_H_
