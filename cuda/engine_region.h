#ifndef KVIST_CUDA_ENGINE_REGION_H_
#define KVIST_CUDA_ENGINE_REGION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/driver/api.h"
#include "cuda/engine_process.h"
#include "storage/base/mapping.h"
#include "storage/base/unique_fd.h"
#include "storage/base/units.h"

namespace kvist::cuda {

class Gpu;

// The ways in which the daemon reaches a region of an engine's memory.
// A memfd that can't shrink.
struct MappedRegion {
  Mapping mapping;
};
// One that can: preadv and pwritev, so that a client that truncates it gets an error, and nobody a SIGBUS.
struct FileRegion {
  UniqueFd fd;
  Bytes length{};
};
// Any other memory of a process.
struct ProcessRegion {
  std::shared_ptr<const EngineProcess> process;
  uint64_t address = 0;

  std::byte* At(ByteOffset at) const { return reinterpret_cast<std::byte*>(address + at.value); }  // there, not here
};

// Memory of a GPU.
struct DeviceRegion {
  Gpu* gpu = nullptr;  // it lives until the daemon's end
  driver::Address address = 0;
  std::shared_ptr<const void> mapping;  // keeps it there
};

// One region of an engine's memory. Move-only; threads: any.
class EngineRegion {
 public:
  using Way = std::variant<MappedRegion, FileRegion, ProcessRegion, DeviceRegion>;

  // Of `fd`: a memfd of plain pages, or a file on tmpfs. Mapped if it is sealed against shrinking. Taken over only when this is OK: until
  // the file is known to be one of these nothing is done with it that its file system could make last, and that includes closing it.
  // Errors: InvalidArgument  neither of these, empty, not open for reading and writing, appending, sealed against writing. Those of
  //   mmap.
  static absl::StatusOr<EngineRegion> OfFile(UniqueFd&& fd);

  // [address, address + length) of a process. Reads its first and last byte, to see whether the kernel lets us.
  // Errors: InvalidArgument  empty, or no addresses. Those of EngineProcess.
  static absl::StatusOr<EngineRegion> OfProcess(std::shared_ptr<const EngineProcess> process, uint64_t address,
                                                Bytes length);

  // [region.address, region.address + length) of a GPU's memory, all of it in what `region.mapping` keeps.
  static EngineRegion OfDevice(DeviceRegion region, Bytes length) { return {std::move(region), length}; }

  const Way& way() const { return way_; }
  Gpu* gpu() const;  // null: it is the host's memory
  bool mapped() const { return std::holds_alternative<MappedRegion>(way_); }
  Bytes length() const { return length_; }

  // Copies [at, at + length) to `out`; for probe pages. Errors: OutOfRange  the file has shrunk. Those of EngineProcess and Gpu::Read.
  absl::Status Read(ByteOffset at, std::byte* out, Bytes length) const;

  // The NUMA node on which the byte at `at` lies, of a GPU the one that is nearest to it; -1: it can't be told, or not from here (a file that
  // isn't mapped; memory without a page; a kernel that keeps it to itself).
  int NumaNode(ByteOffset at) const;

 private:
  EngineRegion(Way way, Bytes length) : way_(std::move(way)), length_(length) {}

  Way way_;
  Bytes length_{};
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_ENGINE_REGION_H_
