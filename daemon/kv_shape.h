#ifndef KVIST_DAEMON_KV_SHAPE_H_
#define KVIST_DAEMON_KV_SHAPE_H_

#include "daemon/session/space_description.h"
#include "storage/codec/shape.h"

namespace kvist::daemon {

// What a codec has to know of a chunk's shards. A page is taken for [token][channel], and the first of two segments for keys, as engines have them
// that don't say more; where that isn't so lossless encoding is as right, and larger, and lossy encoding loses more. KV of other than 16-bit
// floats, and what doesn't divide into tokens, is opaque: only lossless takes it.
codec::Shape ShapeOf(const session::GroupForm& form);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_KV_SHAPE_H_
