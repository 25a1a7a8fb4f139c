#ifndef KVIST_DAEMON_CONTROLLER_CHECKS_H_
#define KVIST_DAEMON_CONTROLLER_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/node.pb.h"

// What is wrong with a request can be said before a node is asked.
// Errors: InvalidArgument  names the field, and what it may be.
namespace kvist::controller {

// A node takes messages of 4 MiB; the rest of one is far below 4 KiB.
inline constexpr size_t kPromptBytesMax = (size_t{4} << 20) - 4096;
// Room for ":" and 16 digits of a space behind it, in a name of at most 64 bytes.
inline constexpr size_t kRequestNameMax = 47;

// A prompt and the spaces in which it is looked for.
absl::Status CheckPrompt(const node::v1::SpaceFilter& space, const node::v1::Prompt& prompt);
absl::Status CheckFilter(const node::v1::SpaceFilter& space);
absl::Status CheckRequestName(const std::string& request);
// dram, ssd or remote:NAME; which of them a node has, it says itself.
absl::Status CheckTier(absl::string_view field, const std::string& tier);

// Names what a node numbers: a job or a pin.
struct NumberAtNode {
  std::string node;
  uint64_t number = 0;
};
absl::StatusOr<NumberAtNode> ReadId(absl::string_view field, const std::string& id);
std::string MakeId(const std::string& node, uint64_t number);

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_CHECKS_H_
