#include "cuda/region_copy.h"

#include <limits.h>
#include <sys/uio.h>

#include <array>
#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "cuda/nontemporal_copy.h"
#include "cuda/region_file.h"
#include "storage/base/check.h"
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

// Any extents, as many as one system call takes; those that follow each other in the process are one piece there.
class ProcessBatch {
 public:
  bool full() const { return ours_count_ == ours_.size(); }
  void Add(const ProcessRegion& region, const Extent& extent) {
    ours_[ours_count_++] = {extent.slot, extent.length};
    if (theirs_count_ > 0 && extent.at.value == end_.value) {
      theirs_[theirs_count_ - 1].iov_len += extent.length;
    } else {
      theirs_[theirs_count_++] = {region.At(extent.at), extent.length};
    }
    end_ = extent.at + Bytes{extent.length};
  }
  absl::Status Transfer(Direction direction, const EngineProcess& process) {
    const std::span<iovec> theirs(theirs_.data(), std::exchange(theirs_count_, 0));
    const std::span<iovec> ours(ours_.data(), std::exchange(ours_count_, 0));
    return direction == Direction::kLoad ? process.Write(theirs, ours) : process.Read(theirs, ours);
  }

 private:
  ByteOffset end_{};  // of the last extent
  size_t theirs_count_ = 0, ours_count_ = 0;
  std::array<iovec, IOV_MAX> theirs_, ours_;
};

absl::Status CopyExtents(Direction direction, const MappedRegion& region, ExtentCursor& cursor) {
  CopyMapped(direction, region.mapping.data(), cursor);
  return absl::OkStatus();
}

absl::Status CopyExtents(Direction direction, const FileRegion& region, ExtentCursor& cursor) {
  if (direction == Direction::kLoad) KVIST_RETURN_IF_ERROR(RequireWritable(region.fd.get(), region.length));
  FileBatch batch;
  for (Extent extent; cursor.Next(&extent); batch.Add(extent)) {
    if (!batch.Takes(extent)) KVIST_RETURN_IF_ERROR(batch.Transfer(direction, region.fd.get()));
  }
  return batch.Transfer(direction, region.fd.get());
}

absl::Status CopyExtents(Direction direction, const ProcessRegion& region, ExtentCursor& cursor) {
  ProcessBatch batch;
  for (Extent extent; cursor.Next(&extent); batch.Add(region, extent)) {
    if (batch.full()) KVIST_RETURN_IF_ERROR(batch.Transfer(direction, *region.process));
  }
  return batch.Transfer(direction, *region.process);
}

absl::Status CopyExtents(Direction, const DeviceRegion&, ExtentCursor&) {
  KVIST_CHECK(false);  // a GPU's copies are its own engine's
}

}  // namespace

PieceOrder OrderFor(const EngineRegion& region) {
  return region.mapped() || region.gpu() != nullptr ? PieceOrder::kSlot : PieceOrder::kPage;
}

absl::Status CopyPieces(const Copy& copy, LayerIndex layer, PieceRange range) {
  const EngineRegion& region = copy.memory->regions[copy.layout().layers[layer.value].region];
  ExtentCursor cursor(copy, layer, OrderFor(region), range);
  return std::visit([&](const auto& way) { return CopyExtents(copy.direction, way, cursor); }, region.way());
}

void ZeroAbsent(const Copy& copy, LayerIndex layer, PieceRange range) {
  const EngineRegion& region = copy.memory->regions[copy.layout().layers[layer.value].region];
  ExtentCursor cursor(copy, layer, OrderFor(region), range, Pieces::kAbsent);
  for (Extent extent; cursor.Next(&extent);) std::memset(extent.slot, 0, extent.length);
}

}  // namespace kvist::cuda
