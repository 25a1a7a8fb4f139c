#ifndef KVIST_DAEMON_CONFIG_H_
#define KVIST_DAEMON_CONFIG_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/config_machine.h"
#include "daemon/options.h"

namespace kvist::daemon {

// Reads Options from a TOML file, and from `--set section.key=value` on top of it. Every key has a default, so an empty file will
// do. Whatever is not understood is refused with its place, and nothing is guessed:
//
//   kvistd.toml:3:9: pool.bytes: the string "4GB"; allowed: bytes, or a string with a unit such as "4GiB" (B, KiB, ...
//   kvistd.toml:7:1: pool.byte: unknown key (did you mean bytes?); allowed: bytes, slab_bytes, touch_threads, lock
//   --set: lease.max: the string "2 days"; allowed: ...
//
// Sizes are integers (bytes) or strings ("4GiB", "512 MiB"), durations strings ("60s", "500ms"), modes octal strings ("0660").
// The result has passed Validate() and is right for the machine (config_machine.h).
//
// Errors: InvalidArgument  as above, every one, a line each: the file's in its order, then those of --set. Where a value can't be read nothing is
//                          filled in, and its key counts as left out.
//         NotFound, PermissionDenied, ...  the file can't be read.
struct ConfigSources {
  std::string file;                    // "" for none
  std::vector<std::string> overrides;  // "section.key=value" each; a later one wins over an earlier one and over the file.
                                       // The value is TOML; whatever isn't (4GiB, 0660, /run/a.sock) is taken as a string.
};
// What it is to be right for.
struct ConfigUse {
  std::optional<Machine> machine;              // none: some machine
  std::function<absl::Status(Options*)> fill;  // fills in what is left out, as FillDefaults does; without it that is right
};
struct LoadedConfig {
  Options written;  // what is left out is as in Options()
  Options options;  // filled in
};
absl::StatusOr<LoadedConfig> LoadConfig(const ConfigSources& sources, const ConfigUse& use);

// The same for a text at hand, as it is written; `name` stands for the file in messages.
absl::StatusOr<Options> ParseConfig(absl::string_view text, absl::string_view name,
                                    const std::vector<std::string>& overrides = {},
                                    const std::optional<Machine>& machine = std::nullopt);

// Fills in what was left empty: paths (/run/kvist and /var/lib/kvist for root; $XDG_RUNTIME_DIR/kvist or /tmp/kvist-UID, and
// $XDG_STATE_HOME/kvist or ~/.local/state/kvist for others), daemon.node (the host's name), pool.bytes (a quarter of the memory that is available now, a multiple
// of 2 MiB) and pool.slab_bytes (64 MiB; for a pool below 1 GiB the largest power of two of which it has 16, but at least 2 MiB, or as
// much as a pool below that holds).
// Touches no file. Validate() afterwards: a key that was given can contradict a default.
//
// Errors: FailedPrecondition  no home directory, or /tmp/kvist-UID is there and isn't a private directory; names the key to set.
absl::Status FillDefaults(Options* options);

// The lines of such an error.
std::vector<std::string> ErrorLines(const absl::Status& error);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CONFIG_H_
