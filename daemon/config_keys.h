#ifndef KVIST_DAEMON_CONFIG_KEYS_H_
#define KVIST_DAEMON_CONFIG_KEYS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/options.h"

namespace kvist::daemon {

// A value as it stands in a configuration, before anybody knows what it is for.
struct ConfigValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>> data;
  std::string found;  // the same in words, for a message: `the integer 7`, `a table`
};

// One row of the table that is the configuration: reading, checking, printing and the words of every error come from it. The name
// of a key and its default are those of its field in Options.
struct ConfigKey {
  absl::string_view section;
  absl::string_view name;
  bool is_text;         // its value is a string in TOML
  std::string allowed;  // what may stand there, in words

  // Takes the value over. False when it has the wrong type or can't be read (`options` is unchanged then); the range is for `holds`.
  std::function<bool(const ConfigValue& value, Options* options)> assign;
  // Whether the field is in its range.
  std::function<bool(const Options& options)> holds;
  // The field as a TOML value that `assign` reads back.
  std::function<std::string(const Options& options)> print;
  // Sets the field of one as it is in the other.
  std::function<void(const Options& from, Options* to)> copy;

  std::string about{};  // what it is for, in a sentence or two, for who has only the printed configuration
  bool live = false;    // a reload puts it in force (Daemon::Apply); any other needs a restart
};

// "session.socket": how a key is called in every message, and in --set.
std::string FullName(const ConfigKey& key);

// Every key but the tenants, in the order of Options.
const std::vector<ConfigKey>& ConfigKeys();

// The section whose keys are uids and whose values are tenants' names.
inline constexpr absl::string_view kTenantsSection = "tenants";
extern const absl::string_view kTenantsAbout;
inline constexpr bool kTenantsLive = true;  // for engines that connect from then on
extern const absl::string_view kTenantUidAllowed;
extern const absl::string_view kTenantNameAllowed;
bool IsTenantUid(absl::string_view text);   // as decimal text without leading zeros, the only spelling
bool IsTenantName(absl::string_view text);  // never one that a uid without a tenant has, "uid:N"

// What keys say about each other.
struct ConfigProblem {
  absl::string_view section;
  absl::string_view name;
  std::string text;  // what was found, and what is allowed
};
std::optional<ConfigProblem> FindContradiction(const Options& options);

// `text` in quotes, control characters escaped, cut after 80 characters.
std::string Quoted(absl::string_view text);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CONFIG_KEYS_H_
