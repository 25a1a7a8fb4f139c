#ifndef KVIST_CUDA_REGION_COPY_H_
#define KVIST_CUDA_REGION_COPY_H_

#include "absl/status/status.h"
#include "cuda/copy_engine.h"
#include "cuda/extents.h"
#include "storage/base/ids.h"

namespace kvist::cuda {

// In which order the pieces of a layer in `region` are walked: mapped ones as they lie in the slots, others page by page.
PieceOrder OrderFor(const EngineRegion& region);

// Copies a range of one layer's pieces (numbered in OrderFor's order), with non-temporal stores where the region is mapped,
// by preadv and pwritev or their like for processes where it isn't. FenceNontemporal is the caller's affair.
// Errors: OutOfRange  the file has shrunk.  What preadv and pwritev say. Those of EngineProcess. A part may have been copied.
absl::Status CopyPieces(const Copy& copy, LayerIndex layer, PieceRange range);

// Zeros in the slots in place of the range's absent pages: what stood there is somebody else's.
void ZeroAbsent(const Copy& copy, LayerIndex layer, PieceRange range);

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_REGION_COPY_H_
