#ifndef KVIST_DAEMON_CORE_INDEX_IMAGE_H_
#define KVIST_DAEMON_CORE_INDEX_IMAGE_H_

#include <cstdint>

#include "storage/base/ids.h"

namespace kvist::core {

// What lies in a core's sections (storage/pool/sections.h): what a later core has to know to go on with the same slots. The core works
// in it, so that keeping it costs nothing; it is right between any two instructions in this sense: whatever an event's effects begin,
// what it has changed before is there to be seen. So the slots of a chunk that is kSealed hold it whole.
enum class ImageSection : uint32_t {
  kSpace = 1,      // of each space, in the order of SpaceIds: a SpaceRow, its sizes, its description
  kChunks = 2,     // kChunksPerSection Chunks, in the order of ChunkIndexes; those that were never used are zero
  kSlotRuns = 3,   // detail: n shards. kRunsPerSection runs of n SlotRefs, in the order of their numbers
  kPlaceRuns = 4,  // the same of DiskPlaces. Nobody reads them: the disk's catalog knows
  kResting = 5,    // RestingSlots
};

// Rises with every change of what is here, of Chunk, SlotRef, ChunkState, or storage/pool/sections.h: a core takes over none
// of another version.
inline constexpr uint32_t kImageVersion = 3;
inline constexpr uint32_t kChunksPerSection = 1 << 14;
inline constexpr uint32_t kRunsPerSection = 4096;

struct SpaceRow {
  SpaceDigest digest;
  uint32_t epoch = 0;
  uint32_t sizes = 0;              // 8 bytes each: of each group how many shards it has, and the slot bytes of each
  uint32_t description_bytes = 0;  // SpaceSpec::description
  uint32_t unused = 0;
};

// A slot that no chunk has, and that somebody may still write to.
struct RestingSlot {
  uint64_t slot_bytes = 0;
  uint32_t slot = 0;   // SlotRef::index
  uint32_t rests = 0;  // 1; 0: not any more
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_INDEX_IMAGE_H_
