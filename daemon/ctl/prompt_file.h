#ifndef KVIST_DAEMON_CTL_PROMPT_FILE_H_
#define KVIST_DAEMON_CTL_PROMPT_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/node.pb.h"

namespace kvist::ctl {

// A prompt as people and programs write it down: token ids, separated by white space or commas, in brackets or not (so a JSON list will do).
// Errors: InvalidArgument  says which word is none; NotFound and others  of the file.
absl::StatusOr<node::v1::Prompt> ParseTokens(absl::string_view text);
absl::StatusOr<node::v1::Prompt> ReadTokens(const std::string& path);  // "-": what comes on stdin

// Or the keys of its chunks: 64 hex digits each, separated by white space.
absl::StatusOr<node::v1::Prompt> ParseKeys(absl::string_view text);
absl::StatusOr<node::v1::Prompt> ReadKeys(const std::string& path);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_PROMPT_FILE_H_
