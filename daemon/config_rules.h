#ifndef KVIST_DAEMON_CONFIG_RULES_H_
#define KVIST_DAEMON_CONFIG_RULES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/endpoint/tls_files.h"
#include "daemon/options.h"

namespace kvist::daemon {

// [tls], as it is used.
endpoint::TlsFiles TlsFilesOf(const Options& options);

// What keys say about each other.
struct ConfigProblem {
  absl::string_view section;
  absl::string_view name;
  std::string text;                         // what was found, and what is allowed
  std::vector<absl::string_view> others{};  // keys (section.name), or sections, without whose values it would be none
};
// `section` and `name` may be in `options`.
std::vector<ConfigProblem> FindContradictions(const Options& options);
// What may stand there, but does not what its author seems to want, a line each. `options` have their defaults filled in.
std::vector<std::string> ConfigWarnings(const Options& options);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CONFIG_RULES_H_
