#ifndef KVIST_DAEMON_CONFIG_KEYS_H_
#define KVIST_DAEMON_CONFIG_KEYS_H_

#include <cstdint>
#include <functional>
#include <map>
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

// Every key but those of maps, in the order of Options.
const std::vector<ConfigKey>& ConfigKeys();

// A section whose keys the user chooses; all its values are of one kind. As for a ConfigKey, everything comes from its row.
struct ConfigMap {
  absl::string_view section;
  absl::string_view key_noun;  // what a key stands for: UID
  bool is_text;                // its values are strings in TOML
  std::string key_allowed;     // what may stand there, in words
  std::string value_allowed;

  std::function<bool(absl::string_view key)> key_holds;
  // Takes an entry over; its key holds. False as for ConfigKey, and when the value is not in its range.
  std::function<bool(const std::string& key, const ConfigValue& value, Options* options)> assign;
  // Whether the value of a key that is there is in its range.
  std::function<bool(const std::string& key, const Options& options)> holds;
  // Every entry: its key as it is, its value as TOML.
  std::function<std::map<std::string, std::string>(const Options& options)> print;
  // Makes all entries of one those of the other.
  std::function<void(const Options& from, Options* to)> copy;

  std::string about{};
  bool live = false;
};

// "tenants.1000": how an entry is called whose key holds; in quotes where TOML wants them, whole, and as TOML reads it back.
std::string FullName(const ConfigMap& map, absl::string_view key);
std::string TomlKey(absl::string_view key);

const std::vector<ConfigMap>& ConfigMaps();

bool IsTenantUid(absl::string_view text);   // as decimal text without leading zeros, the only spelling
bool IsTenantName(absl::string_view text);  // never one that a uid without a tenant has, "uid:N"
// Whether some engine can be of this tenant: "uid:N", or one that `tenants` gives to a uid.
bool IsTenant(absl::string_view name, const std::map<std::string, std::string>& tenants);
// "" when a tenant's quota may be so large, else what is allowed.
std::string CheckQuota(Bytes bytes);

// `text` with *** for what may be secret where it is a URL, even a wrong one: all before its last '@', and after its first '?'.
std::string WithoutSecrets(absl::string_view text);

// `text` without secrets, in quotes, control characters escaped, cut after 80 characters.
std::string Quoted(absl::string_view text);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CONFIG_KEYS_H_
