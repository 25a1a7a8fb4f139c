#include "daemon/options.h"

#include "absl/strings/str_cat.h"
#include "daemon/config_keys.h"
#include "daemon/config_rules.h"

namespace kvist::daemon {

absl::Status Options::Validate() const {
  for (const ConfigKey& key : ConfigKeys()) {
    if (!key.holds(*this)) {
      return absl::InvalidArgumentError(
          absl::StrCat(key.section, ".", key.name, ": ", key.print(*this), "; allowed: ", key.allowed));
    }
  }
  for (const ConfigMap& map : ConfigMaps()) {
    for (const auto& [key, value] : map.print(*this)) {
      if (!map.key_holds(key))
        return absl::InvalidArgumentError(absl::StrCat(map.section, ".", Quoted(key), "; allowed: ", map.key_allowed));
      if (!map.holds(key, *this))
        return absl::InvalidArgumentError(absl::StrCat(FullName(map, key), ": ", value, "; allowed: ", map.value_allowed));
    }
  }
  for (const ConfigProblem& problem : FindContradictions(*this))
    return absl::InvalidArgumentError(absl::StrCat(problem.section, ".", problem.name, ": ", problem.text));
  return absl::OkStatus();
}

}  // namespace kvist::daemon
