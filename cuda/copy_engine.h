#ifndef KVIST_CUDA_COPY_ENGINE_H_
#define KVIST_CUDA_COPY_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "cuda/kv_memory.h"
#include "cuda/slot_arrival.h"
#include "storage/base/ids.h"

namespace kvist::cuda {

enum class Direction : uint8_t {
  kLoad,   // slots -> pages
  kStore,  // pages -> slots
};

// Whether slots have checksums (slot_checksums.h): written by each store, asked before a load gives out a layer of a chunk.
enum class Verify : uint8_t { kNever, kAlways };

// Hears how far a copy has come. Called on the copy engine's threads; must not block and must not call the engine.
class LayerProgress {
 public:
  virtual ~LayerProgress() = default;
  // The first `layers` layers of the copy's range are complete: their bytes are visible to whoever reads this count with
  // acquire order. Rises, never falls; called at most once per layer, by one thread at a time.
  virtual void LayersDone(uint32_t layers) = 0;
};

// What a copy does first. By layer: a layer of all chunks, then the next one, and LayersDone rises. By chunk: all layers of whichever chunk is
// there, so that it goes on while others are still being read chunk by chunk; LayersDone comes at the end.
enum class Order : uint8_t { kByLayer, kByChunk };

// Says how far an engine has come with the pages of a copy: a store's are written, a load's are no longer read. Asked on the copy engine's
// threads, which see the pages as they were when it was so; must not block.
class PagesReady {
 public:
  virtual ~PagesReady() = default;
  // Whether the first `layers` of the copy's layers may be copied. Once true, always.
  virtual bool LayersReady(uint32_t layers) const = 0;
};

// What an engine says of the bus between its GPU and memory: that it needs it itself for a moment. Asked on the copy engine's threads; must not
// block.
class BusClaim {
 public:
  virtual ~BusClaim() = default;
  virtual int64_t UntilNanos() const = 0;  // monotonic; what has passed is no claim
};

// One operation: chunk i of it is slots[i] and the pages page_table[i * pages_per_chunk, (i + 1) * pages_per_chunk).
// The mover expands it into extents itself; they never exist as messages.
struct Copy {
  OpId op;
  Direction direction = Direction::kLoad;
  std::shared_ptr<const KvMemory> memory;
  GroupId group;                  // which of its layouts
  std::vector<std::byte*> slots;  // start of each slot (its header place); held until the copy is quiet
  // Every id is below layout().pages, or kNoPage: a load writes nothing there, a store zeros into the slot.
  std::vector<PageId> page_table;
  uint32_t first_layer = 0;
  uint32_t layer_count = 0;
  std::shared_ptr<LayerProgress> progress;  // may be null
  Order order = Order::kByLayer;
  // Of a load: [slot] how much of it is there, or null: all. Empty: all of all slots. Nothing is copied before it is there.
  std::vector<std::shared_ptr<SlotArrival>> arrivals;
  // Nothing is copied of layers that it doesn't call ready. Null: all are.
  std::shared_ptr<const PagesReady> pages_ready = nullptr;
  int64_t ready_by_nanos = INT64_MAX;  // monotonic: it ends with DeadlineExceeded when they aren't all ready by then
  // The engine's, who keeps it; null: it claims nothing. For GPUs (bus_claims.h)
  std::shared_ptr<const BusClaim> bus = nullptr;

  const KvLayout& layout() const { return memory->layouts[group.value]; }
};

// What came of a copy.
struct CopyEnd {
  absl::Status status;
  // With DataLoss, which only loads end with: which of the copy's slots hold other bytes than were stored (perhaps not all that do),
  // ascending. Nothing of the layers in which they do was copied to pages.
  std::vector<uint32_t> corrupt = {};
  int64_t began_nanos = 0;  // monotonic: when its first byte's turn came; 0: it was cancelled before
};

// Moves bytes between an engine's pages and slots.
//
// Lifecycle of a copy: Submit -> running -> quiet: `done` is called exactly once, when nothing touches the slots or the pages
//   any more, whatever happened, and the engine has let go of `memory` and `progress`. After Cancel it becomes quiet soon, with
//   Cancelled or, if it was already through, OK.
// Errors:  OK; Cancelled; DeadlineExceeded (ready_by_nanos); of a slot that is being read what its SlotArrival ended with; OutOfRange (the engine's file has shrunk, or its memory isn't mapped any more: the store's bytes are not to
//   be used); Unavailable (its process has ended); DataLoss (a checksum doesn't match); what the operating system says of memory that may no longer be read or written.
// Order:   as the copy says; loads go before stores. Loads that wait for what is being read hold nobody up.
// Threads: Submit and Cancel from one thread (the reactor), Arrived and Look from any; they never block. `done` runs on a thread of the engine, for several
//   copies perhaps on several at once, and only hands the result over. The destructor cancels what is in flight and waits for
//   quiet.
class CopyEngine {
 public:
  using Done = std::function<void(OpId op, CopyEnd end)>;
  virtual ~CopyEngine() = default;
  virtual void Submit(Copy copy) = 0;
  virtual void Cancel(OpId op) = 0;
  // A slot has what copies lacked (SlotArrival).
  virtual void Arrived() = 0;
  // Something else that copies may wait for has come: a slot's read has failed, pages are ready.
  virtual void Look() = 0;
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_COPY_ENGINE_H_
