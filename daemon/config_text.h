#ifndef KVIST_DAEMON_CONFIG_TEXT_H_
#define KVIST_DAEMON_CONFIG_TEXT_H_

#include <string>
#include <vector>

#include "daemon/options.h"

namespace kvist::daemon {

// A configuration as TOML that ParseConfig reads back as the same Options, and as a JSON object of sections; every key is there.
std::string PrintConfig(const Options& options);
std::string PrintConfigJson(const Options& options);

// Every key with its default, what it is for, what is allowed, and whether it can change while kvistd runs: a file to start from.
std::string PrintDefaults();
std::string PrintDefaultsJson();

// A key that isn't as it is by default (or as it was): values as TOML, "" for an entry of a map that isn't there.
struct ConfigDifference {
  std::string name;  // pool.bytes, tenants.1000
  std::string value;
  std::string before;
  bool live;  // see ConfigKey
};
std::vector<ConfigDifference> Differences(const Options& options, const Options& before);

// Lines `pool.bytes = "4GiB"  # default: 0`, which are TOML, too; and [{"key":, "value":, "default":}], null for no entry.
std::string PrintDifferences(const std::vector<ConfigDifference>& differences);
std::string PrintDifferencesJson(const std::vector<ConfigDifference>& differences);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CONFIG_TEXT_H_
