#ifndef KVIST_CUDA_EXTENTS_H_
#define KVIST_CUDA_EXTENTS_H_

#include <cstddef>
#include <cstdint>

#include "cuda/copy_engine.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

namespace kvist::cuda {

// Bytes that lie together in the engine's region and in the slot.
struct Extent {
  ByteOffset at;  // in the layer's region
  std::byte* slot = nullptr;
  size_t length = 0;
};

// A piece is one segment of one page: the smallest thing a copy moves. The pieces of a layer over all chunks of a copy are
// numbered in the order in which they are walked.
enum class PieceOrder : uint8_t {
  kSlot,  // [chunk][segment][page]: as they lie in the slots
  kPage,  // [chunk][page][segment]: page by page, so that a page's neighbouring segments make one transfer
};
struct PieceRange {
  uint64_t first = 0;
  uint64_t end = 0;
};

// Which pieces of a range: those of the engine's pages, or those in place of pages that are kNoPage (whose `at` means nothing).
enum class Pieces : uint8_t { kOfPages, kAbsent };

// How many pieces a layer of a chunk has, and a layer of `copy`: chunk by chunk.
uint64_t PiecesPerChunk(const KvLayout& layout);
uint64_t PiecesPerLayer(const Copy& copy);

// Walks a range of one layer's pieces and joins those that follow each other on both sides. Nothing is materialised.
// Borrows the copy. Threads: one at a time. Stops the process at a page id that the layout doesn't have.
class ExtentCursor {
 public:
  // `layer` counts from the layout's first.
  ExtentCursor(const Copy& copy, LayerIndex layer, PieceOrder order, PieceRange range, Pieces which = Pieces::kOfPages);

  // The next extent; false at the end.
  bool Next(Extent* extent);

 private:
  PageId Page() const;  // at the cursor
  bool Wanted() const { return (Page() == kNoPage) == (which_ == Pieces::kAbsent); }
  Extent Piece() const;  // the same
  void Advance();

  const Copy& copy_;
  const KvLayout& layout_;
  const PieceOrder order_;
  const Pieces which_;
  const ByteOffset layer_at_;     // in the region
  const uint64_t layer_in_slot_;  // from the slot's start
  const uint32_t segments_;
  uint64_t left_;  // pieces, including the one at the cursor
  uint64_t chunk_;
  uint32_t segment_;
  uint32_t page_;  // of the chunk
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_EXTENTS_H_
