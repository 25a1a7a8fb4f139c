#ifndef KVIST_CUDA_KV_MEMORY_H_
#define KVIST_CUDA_KV_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "cuda/engine_region.h"
#include "storage/base/ids.h"
#include "storage/base/shm/layout.h"
#include "storage/base/units.h"
#include "storage/pool/slot_header.h"

namespace kvist::cuda {

// How an engine's paged KV memory lies, and how a chunk of it lies in a slot. Plain numbers, checked once by Validate.
//
//   engine:  byte b of segment s of page p of layer l = region[layers[l].region] + layers[l].offset + p * page_stride
//                                                       + segment_offsets[s] + b
//   slot:    [layer][segment][page of the chunk][segment_bytes], after a header place of kSlotHeaderBytes; layer-major
//
// With pages that hold tokens in order the slot is [layer][segment][token], so engines with other page sizes could read it.
struct KvLayout {
  struct Layer {
    uint32_t region = 0;
    ByteOffset offset{};
  };
  static constexpr size_t kLayersMax = kSlotLayersMax;       // their checksums fit into a slot's header place
  static constexpr size_t kSegmentsMax = shm::kSegmentsMax;  // Validate compares them in pairs
  std::vector<Layer> layers;
  uint32_t pages = 0;  // page ids are below this
  Bytes page_stride{};
  std::vector<Bytes> segment_offsets;  // one per segment of a page, from the page's start
  Bytes segment_bytes{};
  uint32_t pages_per_chunk = 0;

  Bytes page_bytes() const { return segment_bytes * segment_offsets.size(); }  // of one page in one layer
  Bytes layer_bytes() const { return page_bytes() * pages_per_chunk; }         // of one chunk in one layer
  Bytes payload_bytes() const { return layer_bytes() * layers.size(); }        // of one shard

  // Errors: InvalidArgument  names the field: empty, zero, overflowing, segments that overlap (in one page or in two: K of
  //   all pages may come before V of all pages), or a page that ends outside its region. Layers may share places: that is
  //   the engine's affair.
  absl::Status Validate(const std::vector<Bytes>& region_lengths) const;
};

// Size of the slot for one shard: header place and payload, padded to 4 KiB.
constexpr Bytes SlotBytesFor(Bytes payload) { return kSlotHeaderBytes + AlignUp(payload, kPageOfMemory); }

// A worker's registered memory. Shared by the session and by the copies in flight; the mapping goes with the last of them.
struct KvMemory {
  std::vector<KvLayout> layouts;  // [group]; groups may share places, in pages of their own
  std::vector<EngineRegion> regions;
  Gpu* gpu = nullptr;  // whose memory all regions are; null: the host's

  // Reads bytes [from, from + out.size()) of one page of one layer, segment after segment; for probe pages. Errors: those of EngineRegion::Read.
  absl::Status ReadPage(const KvLayout& layout, LayerIndex layer, PageId page, Bytes from, std::span<std::byte> out) const;

  // The NUMA node of its first page, for all: engines that care bind a worker's memory to one. -1: unknown (EngineRegion::NumaNode).
  int NumaNode() const;
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_KV_MEMORY_H_
