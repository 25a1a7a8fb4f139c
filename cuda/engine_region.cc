#include "cuda/engine_region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <numaif.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#include <cstring>

#include "cuda/gpu.h"
#include "cuda/region_file.h"
#include "storage/base/status.h"

namespace kvist::cuda {
namespace {

absl::Status ReadFrom(const MappedRegion& region, ByteOffset at, iovec out) {
  std::memcpy(out.iov_base, region.mapping.data() + at.value, out.iov_len);
  return absl::OkStatus();
}

absl::Status ReadFrom(const FileRegion& region, ByteOffset at, iovec out) {
  return ReadRegion(region.fd.get(), at, {&out, 1});
}

absl::Status ReadFrom(const ProcessRegion& region, ByteOffset at, iovec out) {
  iovec there{region.At(at), out.iov_len};
  return region.process->Read({&there, 1}, {&out, 1});
}

absl::Status ReadFrom(const DeviceRegion& region, ByteOffset at, iovec out) {
  return region.gpu->Read(region.address + at.value, static_cast<std::byte*>(out.iov_base), Bytes{out.iov_len});
}

int NodeOf(const MappedRegion& region, ByteOffset at) {
  // Through this mapping, whether or not the page has been touched through it.
  int node = -1;
  return ::get_mempolicy(&node, nullptr, 0, region.mapping.data() + at.value, MPOL_F_NODE | MPOL_F_ADDR) == 0 ? node : -1;
}

int NodeOf(const FileRegion&, ByteOffset) { return -1; }

int NodeOf(const ProcessRegion& region, ByteOffset at) { return region.process->NumaNode(region.At(at)); }

int NodeOf(const DeviceRegion& region, ByteOffset) { return region.gpu->numa_node(); }

}  // namespace

absl::StatusOr<EngineRegion> EngineRegion::OfFile(UniqueFd&& fd) {
  // Only files that live in memory and that the kernel serves by itself: one on FUSE or NFS could keep a copy waiting for
  // ever, and already whoever asks what it is. What has seals lives in memory, and their being there is asked of no file system.
  const absl::Status wrong_kind =
      absl::InvalidArgumentError("KV memory region: neither a memfd (without MFD_HUGETLB) nor a file on tmpfs");
  if (::fcntl(fd.get(), F_GET_SEALS) < 0) return wrong_kind;
  // One of explicit huge pages (hugetlb) faults with SIGBUS where its owner has punched a hole, sealed or not.
  struct statfs filesystem;
  struct stat file;
  if (::fstatfs(fd.get(), &filesystem) != 0 || ::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode) ||
      filesystem.f_type != TMPFS_MAGIC) {
    return wrong_kind;
  }
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDWR) {
    return absl::InvalidArgumentError("KV memory region: not open for reading and writing");
  }
  if ((flags & O_APPEND) != 0) {
    return absl::InvalidArgumentError(
        "KV memory region: open for appending (O_APPEND), so what is loaded would go to its end");
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return absl::InvalidArgumentError("KV memory region: sealed against writing, so nothing could be loaded into it");
  }
  // The length is asked after the seals: what a seal says then holds for it.
  if (::fstat(fd.get(), &file) != 0 || file.st_size <= 0) return absl::InvalidArgumentError("KV memory region: empty");
  const Bytes length{static_cast<uint64_t>(file.st_size)};
  if ((seals & F_SEAL_SHRINK) == 0) return EngineRegion(FileRegion{std::move(fd), length}, length);
  KVIST_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Create(fd.get(), length, Mapping::Access::kReadWrite));
  fd.reset();
  return EngineRegion(MappedRegion{std::move(mapping)}, length);
}

absl::StatusOr<EngineRegion> EngineRegion::OfProcess(std::shared_ptr<const EngineProcess> process, uint64_t address,
                                                     Bytes length) {
  if (uint64_t end = 0; length.value == 0 || __builtin_add_overflow(address, length.value, &end)) {
    return absl::InvalidArgumentError("KV memory region: empty, or longer than the addresses go");
  }
  EngineRegion region(ProcessRegion{std::move(process), address}, length);
  for (const uint64_t at : {uint64_t{0}, length.value - 1}) {
    std::byte read;
    KVIST_RETURN_IF_ERROR(region.Read({at}, &read, {1}));
  }
  return region;
}

Gpu* EngineRegion::gpu() const {
  const auto* device = std::get_if<DeviceRegion>(&way_);
  return device == nullptr ? nullptr : device->gpu;
}

absl::Status EngineRegion::Read(ByteOffset at, std::byte* out, Bytes length) const {
  return std::visit([&](const auto& way) { return ReadFrom(way, at, {out, length.value}); }, way_);
}

int EngineRegion::NumaNode(ByteOffset at) const {
  return std::visit([&](const auto& way) { return NodeOf(way, at); }, way_);
}

}  // namespace kvist::cuda
