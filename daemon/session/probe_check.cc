#include "daemon/session/probe_check.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/shm/probe_pattern.h"
#include "storage/base/status.h"

namespace kvist::session {

namespace {

constexpr uint64_t kSegmentsAPiece = 256;
constexpr Bytes kSegmentCost{4096};

}  // namespace

static_assert(ProbeCheck::kPiece.value % 8 == 0 && kSegmentsAPiece % 8 == 0, "a pattern goes on at multiples of 8");

ProbeCheck::ProbeCheck(std::shared_ptr<const cuda::KvMemory> memory, GroupId group, uint64_t nonce)
    : memory_(std::move(memory)), group_(group), nonce_(nonce) {
  for (uint16_t g = 0; g < group.value; ++g) first_ += static_cast<uint32_t>(memory_->layouts[g].layers.size());
}

absl::StatusOr<bool> ProbeCheck::GoOn(Bytes* left) {
  const Bytes page_bytes = layout().page_bytes();
  // A segment is a read of its own, which costs as much as some KiB.
  const Bytes piece = std::min(kPiece, layout().segment_bytes * kSegmentsAPiece);
  std::vector<std::byte> found, wanted;
  while (layer_ < layout().layers.size()) {
    if (*left == Bytes{}) return false;
    const PageId page{last_page_ ? layout().pages - 1 : 0};
    const size_t size = std::min(page_bytes - at_, piece).value;
    found.resize(size);
    wanted.resize(size);
    KVIST_RETURN_IF_ERROR(memory_->ReadPage(layout(), LayerIndex{layer_}, page, at_, found));
    shm::FillProbePattern(nonce_, LayerIndex{first_ + layer_}, page, wanted, at_.value);
    if (found != wanted) {
      const auto differs = std::mismatch(found.begin(), found.end(), wanted.begin()).first - found.begin();
      const Bytes at = at_ + Bytes{static_cast<uint64_t>(differs)};
      return absl::FailedPreconditionError(
          absl::StrCat("the KV memory isn't where it was described: page ", page.value, " of layer ", first_ + layer_,
                       " differs from what the engine wrote from byte ", at.value, " of ", page_bytes.value, " on (segment ",
                       at / layout().segment_bytes, "); check base, strides and segments"));
    }
    *left -= std::min(*left, std::max(Bytes{size}, kSegmentCost * (Bytes{size} / layout().segment_bytes)));
    at_ += Bytes{size};
    if (at_ < page_bytes) continue;
    at_ = {};
    layer_ += last_page_ ? 1 : 0;
    last_page_ = !last_page_;
  }
  return true;
}

}  // namespace kvist::session
