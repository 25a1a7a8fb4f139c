#include "cuda/kv_memory.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::cuda {
namespace {

// A slot of this payload still has a size in 63 bits; nothing real comes near.
constexpr uint64_t kPayloadBytesMax = uint64_t{1} << 62;

template <class... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("KV memory layout: ", parts...));
}

bool Add(uint64_t a, uint64_t b, uint64_t* sum) { return !__builtin_add_overflow(a, b, sum); }
bool Multiply(uint64_t a, uint64_t b, uint64_t* product) { return !__builtin_mul_overflow(a, b, product); }

// Whether a segment at `a` of some page and one at `b` >= a of some page share bytes: they do when a multiple k < pages of
// the stride comes closer to b - a than a segment's length.
bool Overlap(const KvLayout& layout, uint64_t a, uint64_t b) {
  const uint64_t distance = b - a, stride = layout.page_stride.value, bytes = layout.segment_bytes.value;
  const uint64_t below = std::min<uint64_t>(distance / stride, layout.pages - 1);
  if (distance - below * stride < bytes) return true;
  // below + 1 pages further lies past b, if there is such a page.
  return below + 1 < layout.pages && stride - (distance - below * stride) < bytes;
}

absl::Status ValidateCounts(const KvLayout& layout) {
  if (layout.layers.empty()) return Wrong("layers: there is none");
  if (layout.layers.size() > KvLayout::kLayersMax) {
    return Wrong("layers: ", layout.layers.size(), " of them, at most ", KvLayout::kLayersMax, " are served");
  }
  if (layout.pages == 0) return Wrong("pages: is 0");
  if (layout.page_stride.value == 0) return Wrong("page_stride: is 0");
  if (layout.segment_offsets.empty()) return Wrong("segment_offsets: there is none");
  if (layout.segment_offsets.size() > KvLayout::kSegmentsMax) {
    return Wrong("segment_offsets: ", layout.segment_offsets.size(), " of them, at most ", KvLayout::kSegmentsMax,
                 " are served");
  }
  if (layout.segment_bytes.value == 0) return Wrong("segment_bytes: is 0");
  if (layout.pages_per_chunk == 0) return Wrong("pages_per_chunk: is 0");
  uint64_t payload = 0;
  if (!Multiply(layout.segment_bytes.value, layout.segment_offsets.size(), &payload) ||
      !Multiply(payload, layout.pages_per_chunk, &payload) || !Multiply(payload, layout.layers.size(), &payload) ||
      payload > kPayloadBytesMax) {
    return Wrong("segment_bytes ", layout.segment_bytes.value, " x ", layout.segment_offsets.size(),
                 " segments x pages_per_chunk ", layout.pages_per_chunk, " x ", layout.layers.size(),
                 " layers: no slot is that large");
  }
  return absl::OkStatus();
}

absl::Status ValidateSegments(const KvLayout& layout) {
  if (layout.pages > 1 && layout.page_stride < layout.segment_bytes) {
    return Wrong("page_stride: ", layout.page_stride.value, " is less than segment_bytes ", layout.segment_bytes.value,
                 ", so pages overlap");
  }
  std::vector<Bytes> offsets = layout.segment_offsets;
  std::sort(offsets.begin(), offsets.end());
  for (size_t b = 1; b < offsets.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (Overlap(layout, offsets[a].value, offsets[b].value)) {
        return Wrong("segment_offsets: segments at ", offsets[a].value, " and ", offsets[b].value,
                     " overlap, in one page or in two");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status KvLayout::Validate(const std::vector<Bytes>& region_lengths) const {
  KVIST_RETURN_IF_ERROR(ValidateCounts(*this));
  // From a layer's start to the end of its last page.
  const uint64_t last_segment = std::max_element(segment_offsets.begin(), segment_offsets.end())->value;
  uint64_t span = 0;
  if (!Multiply(page_stride.value, pages - 1, &span) || !Add(span, last_segment, &span) ||
      !Add(span, segment_bytes.value, &span)) {
    return Wrong("page_stride ", page_stride.value, " x pages ", pages, " + segment_offsets ", last_segment,
                 ": beyond 64 bits");
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].region >= region_lengths.size()) {
      return Wrong("layers[", l, "].region: is ", layers[l].region, ", but there are ", region_lengths.size(), " regions");
    }
    const uint64_t length = region_lengths[layers[l].region].value;
    uint64_t end = 0;
    if (!Add(layers[l].offset.value, span, &end) || end > length) {
      return Wrong("layers[", l, "].offset: ", layers[l].offset.value, " + ", span, " bytes of ", pages,
                   " pages (page_stride ", page_stride.value, ", largest of segment_offsets ", last_segment,
                   ") end outside region ", layers[l].region, " of ", length, " bytes");
    }
  }
  return ValidateSegments(*this);
}

absl::Status KvMemory::ReadPage(const KvLayout& layout, LayerIndex layer, PageId page, Bytes from,
                                std::span<std::byte> out) const {
  KVIST_CHECK(layer.value < layout.layers.size() && page.value < layout.pages && from <= layout.page_bytes() &&
              out.size() <= (layout.page_bytes() - from).value);
  const KvLayout::Layer& place = layout.layers[layer.value];
  const ByteOffset start = place.offset + layout.page_stride * page.value;
  while (!out.empty()) {
    const Bytes in_segment{from.value % layout.segment_bytes.value};
    const Bytes piece = std::min(Bytes{out.size()}, layout.segment_bytes - in_segment);
    const Bytes segment = layout.segment_offsets[from / layout.segment_bytes];
    KVIST_RETURN_IF_ERROR(regions[place.region].Read(start + segment + in_segment, out.data(), piece));
    out = out.subspan(piece.value);
    from += piece;
  }
  return absl::OkStatus();
}

int KvMemory::NumaNode() const {
  const KvLayout::Layer& first = layouts.front().layers.front();
  return regions[first.region].NumaNode(first.offset);
}

}  // namespace kvist::cuda
