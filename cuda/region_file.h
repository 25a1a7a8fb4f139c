#ifndef KVIST_CUDA_REGION_FILE_H_
#define KVIST_CUDA_REGION_FILE_H_

#include <sys/uio.h>

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "storage/base/units.h"

namespace kvist::cuda {

// Reads from or writes to an engine's file, all of it: short transfers go on where they stopped, `pieces` (at most IOV_MAX)
// is used up.
// Shape:  the bytes [at, at + sum of the pieces' lengths) of the file; the pieces in order.
// Errors: OutOfRange  the file ends before the end of the read.  What preadv and pwritev say otherwise.
absl::Status ReadRegion(int fd, ByteOffset at, std::span<iovec> pieces);
absl::Status WriteRegion(int fd, ByteOffset at, std::span<iovec> pieces);

// What of `pieces` is left once their first `count` bytes are transferred; may shorten a piece in place.
std::span<iovec> AfterTransfer(std::span<iovec> pieces, size_t count);

// Whether what is written now at a place of the first `length` bytes gets there; a write must ask first (whoever changes that meanwhile harms himself). Errors: OutOfRange  the file is shorter: a
// write would make it longer again.  FailedPrecondition  its owner has made it append (O_APPEND), whatever the place.
absl::Status RequireWritable(int fd, Bytes length);

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_REGION_FILE_H_
