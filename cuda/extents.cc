#include "cuda/extents.h"

#include "storage/base/check.h"

namespace kvist::cuda {

uint64_t PiecesPerChunk(const KvLayout& layout) { return layout.segment_offsets.size() * layout.pages_per_chunk; }

uint64_t PiecesPerLayer(const Copy& copy) { return copy.slots.size() * PiecesPerChunk(copy.layout()); }

ExtentCursor::ExtentCursor(const Copy& copy, LayerIndex layer, PieceOrder order, PieceRange range, Pieces which)
    : copy_(copy),
      layout_(copy.layout()),
      order_(order),
      which_(which),
      layer_at_(layout_.layers[layer.value].offset),
      layer_in_slot_((kSlotHeaderBytes + layout_.layer_bytes() * layer.value).value),
      segments_(static_cast<uint32_t>(layout_.segment_offsets.size())),
      left_(range.end - range.first) {
  const uint64_t per_chunk = uint64_t{layout_.pages_per_chunk} * segments_;
  const uint64_t within = range.first % per_chunk;
  chunk_ = range.first / per_chunk;
  segment_ = static_cast<uint32_t>(order == PieceOrder::kSlot ? within / layout_.pages_per_chunk : within % segments_);
  page_ = static_cast<uint32_t>(order == PieceOrder::kSlot ? within % layout_.pages_per_chunk : within / segments_);
}

bool ExtentCursor::Next(Extent* extent) {
  while (left_ > 0 && !Wanted()) Advance();
  if (left_ == 0) return false;
  *extent = Piece();
  for (Advance(); left_ > 0 && Wanted(); Advance()) {
    const Extent piece = Piece();
    const bool follows = which_ == Pieces::kAbsent || piece.at.value == extent->at.value + extent->length;
    if (!follows || piece.slot != extent->slot + extent->length) break;
    extent->length += piece.length;
  }
  return true;
}

PageId ExtentCursor::Page() const { return copy_.page_table[chunk_ * layout_.pages_per_chunk + page_]; }

Extent ExtentCursor::Piece() const {
  const PageId page = which_ == Pieces::kAbsent ? PageId{0} : Page();
  KVIST_CHECK(page.value < layout_.pages);  // else the address below would be anybody's
  const Bytes bytes = layout_.segment_bytes;
  const uint64_t in_layer = uint64_t{segment_} * layout_.pages_per_chunk + page_;
  return {layer_at_ + layout_.page_stride * page.value + layout_.segment_offsets[segment_],
          copy_.slots[chunk_] + layer_in_slot_ + (bytes * in_layer).value, bytes.value};
}

void ExtentCursor::Advance() {
  --left_;
  if (order_ == PieceOrder::kSlot) {
    if (++page_ < layout_.pages_per_chunk) return;
    page_ = 0;
    if (++segment_ < segments_) return;
    segment_ = 0;
  } else {
    if (++segment_ < segments_) return;
    segment_ = 0;
    if (++page_ < layout_.pages_per_chunk) return;
    page_ = 0;
  }
  ++chunk_;
}

}  // namespace kvist::cuda
