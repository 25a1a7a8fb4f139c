#ifndef KVIST_DAEMON_RPC_SPACE_PREFIX_H_
#define KVIST_DAEMON_RPC_SPACE_PREFIX_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/rpc/node_control.h"

namespace kvist::rpc {

// Digits of a digest that people see and type; 64 bits tell apart all spaces that a node will ever meet.
inline constexpr size_t kShownDigits = 16;

// The full digest of the one space that begins with `prefix` (hex, either case, at least one digit).
// Errors: InvalidArgument  not hex, or several spaces begin so (they are listed).  NotFound  none does (all are listed).
absl::StatusOr<std::string> ResolveSpace(absl::string_view prefix, const std::vector<NodeStatus::Space>& spaces);

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_SPACE_PREFIX_H_
