#ifndef KVIST_DAEMON_SESSION_SPACE_DESCRIPTION_H_
#define KVIST_DAEMON_SESSION_SPACE_DESCRIPTION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/space_spec.h"
#include "storage/base/units.h"

namespace kvist::session::v1 {
class Space;
class Space_Group;
}  // namespace kvist::session::v1

// Spaces as engines describe them, and as later daemons find them described (SpaceSpec::description).
namespace kvist::session {

// ---- A description that comes now -------------------------------------------------------------------------------------------

// Errors name the field: InvalidArgument  it is out of its range.  FailedPrecondition  a slot order that isn't served.
absl::Status CheckSpace(const v1::Space& space);
// Of a space that was checked. Its digest is
//   SHA-256("kvist.space.1\0" | tenant | model | revision | kv_dtype | layout | page_tokens | chunk_tokens
//           | tensor_parallel | pipeline_parallel | slot_order | per group: kind, layers, segments, segment_bytes, pages of a chunk, window_tokens, replicated)
// with strings length-prefixed and numbers as 8 bytes, so that no two descriptions run into each other.
core::SpaceSpec SpecOf(const v1::Space& space, const std::string& tenant);
uint32_t PagesPerChunk(const v1::Space& space, const v1::Space_Group& group);

// Whether a field is within [low, high], or is a name: not too long, nothing that a terminal would heed. Errors: InvalidArgument, naming it.
absl::Status InRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high);
absl::Status CheckName(std::string_view field, const std::string& value, bool required);

// ---- One that was kept ------------------------------------------------------------------------------------------------------

// The space that was described by `description`, maybe by an earlier daemon.
// Errors: InvalidArgument  it isn't one, or one that this daemon wouldn't serve.
absl::StatusOr<core::SpaceSpec> SpaceOf(const std::string& description);
// What of it the core doesn't know. Errors: InvalidArgument  it is none.
absl::StatusOr<uint32_t> ChunkTokensOf(const std::string& description);
struct GroupForm {  // of a chunk of a group on one rank: [layer][segment][page][page_tokens values of kv_dtype each]
  std::string kv_dtype;
  uint32_t layers = 0, segments = 0, pages = 0;
  uint32_t page_tokens = 0;
  Bytes segment_bytes{};
};
absl::StatusOr<std::vector<GroupForm>> FormsOf(const std::string& description);

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_SPACE_DESCRIPTION_H_
