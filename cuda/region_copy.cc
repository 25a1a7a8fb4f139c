#include "cuda/region_copy.h"

#include <limits.h>
#include <sys/uio.h>

#include <array>
#include <cstring>
#include <span>

#include "cuda/nontemporal_copy.h"
#include "cuda/region_file.h"
#include "storage/base/status.h"

namespace kvist::cuda {
namespace {

// One extent behind the cursor, because the kernel wants to know what is read next.
void CopyMapped(Direction direction, std::byte* region, ExtentCursor& cursor) {
  Extent extent, next;
  for (bool more = cursor.Next(&extent); more; extent = next) {
    more = cursor.Next(&next);
    if (!more) next = extent;  // nothing follows: any address does
    std::byte* page = region + extent.at.value;
    if (direction == Direction::kLoad) {
      CopyNontemporal(page, extent.slot, extent.length, next.slot);
    } else {
      CopyNontemporal(extent.slot, page, extent.length, region + next.at.value);
    }
  }
}

// Extents that follow each other in the file, wherever they go in the slots: one system call.
class FileBatch {
 public:
  bool Takes(const Extent& extent) const {
    return count_ == 0 || (count_ < pieces_.size() && extent.at.value == at_.value + length_);
  }
  void Add(const Extent& extent) {
    if (count_ == 0) at_ = extent.at;
    pieces_[count_++] = {extent.slot, extent.length};
    length_ += extent.length;
  }
  absl::Status Transfer(Direction direction, int fd) {
    const std::span<iovec> pieces(pieces_.data(), count_);
    count_ = 0, length_ = 0;
    return direction == Direction::kLoad ? WriteRegion(fd, at_, pieces) : ReadRegion(fd, at_, pieces);
  }

 private:
  ByteOffset at_{};
  uint64_t length_ = 0;
  size_t count_ = 0;
  std::array<iovec, IOV_MAX> pieces_;
};

absl::Status CopyThroughFile(Direction direction, const EngineRegion& region, ExtentCursor& cursor) {
  if (direction == Direction::kLoad) KVIST_RETURN_IF_ERROR(RequireLength(region.fd(), region.length()));
  FileBatch batch;
  for (Extent extent; cursor.Next(&extent); batch.Add(extent)) {
    if (!batch.Takes(extent)) KVIST_RETURN_IF_ERROR(batch.Transfer(direction, region.fd()));
  }
  return batch.Transfer(direction, region.fd());
}

}  // namespace

PieceOrder OrderFor(const EngineRegion& region) { return region.mapped() ? PieceOrder::kSlot : PieceOrder::kPage; }

absl::Status CopyPieces(const Copy& copy, LayerIndex layer, PieceRange range) {
  const EngineRegion& region = copy.memory->regions[copy.layout().layers[layer.value].region];
  ExtentCursor cursor(copy, layer, OrderFor(region), range);
  if (!region.mapped()) return CopyThroughFile(copy.direction, region, cursor);
  CopyMapped(copy.direction, region.data(), cursor);
  return absl::OkStatus();
}

void ZeroAbsent(const Copy& copy, LayerIndex layer, PieceRange range) {
  const EngineRegion& region = copy.memory->regions[copy.layout().layers[layer.value].region];
  ExtentCursor cursor(copy, layer, OrderFor(region), range, Pieces::kAbsent);
  for (Extent extent; cursor.Next(&extent);) std::memset(extent.slot, 0, extent.length);
}

}  // namespace kvist::cuda
