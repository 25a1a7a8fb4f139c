#ifndef KVIST_DAEMON_KV_SHAPE_H_
#define KVIST_DAEMON_KV_SHAPE_H_

#include <vector>

#include "absl/status/status.h"
#include "daemon/core/space_spec.h"
#include "daemon/session/space_description.h"
#include "storage/codec/method.h"
#include "storage/codec/shape.h"

namespace kvist::daemon {

// What a codec has to know of a chunk's shards. A page is taken for [token][channel], and the first of two segments for keys, as engines have them
// that don't say more; where that isn't so lossless encoding is as right, and larger, and lossy encoding loses more. KV of other than 16-bit
// floats, and what doesn't divide into tokens, is opaque: only lossless takes it.
codec::Shape ShapeOf(const session::GroupForm& form);
// [group] Those of a space, as its description says; of what that doesn't say only the length is known.
std::vector<codec::Shape> ShapesOf(const core::SpaceSpec& space);

// Whether the method takes the space's KV. Errors: InvalidArgument  says why not, and which does; its first word is the field.
absl::Status MayEncode(const core::SpaceSpec& space, codec::Method method);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_KV_SHAPE_H_
