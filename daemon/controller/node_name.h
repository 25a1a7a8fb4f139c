#ifndef KVIST_DAEMON_CONTROLLER_NODE_NAME_H_
#define KVIST_DAEMON_CONTROLLER_NODE_NAME_H_

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace kvist::controller {

// What a node may be called: as host names are, so that ids of its jobs (NODE/NUMBER) need no escapes.
inline constexpr size_t kNodeNameMax = 64;  // of Linux's host names
inline constexpr char kNodeNameAllowed[] = "1 to 64 letters, digits, '.', '_' and '-'";

inline bool IsNodeName(absl::string_view name) {
  return !name.empty() && name.size() <= kNodeNameMax && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_NODE_NAME_H_
