#include "daemon/options.h"

#include "absl/strings/str_cat.h"
#include "daemon/config_keys.h"

namespace kvist::daemon {

absl::Status Options::Validate() const {
  for (const ConfigKey& key : ConfigKeys()) {
    if (!key.holds(*this)) {
      return absl::InvalidArgumentError(
          absl::StrCat(key.section, ".", key.name, ": ", key.print(*this), "; allowed: ", key.allowed));
    }
  }
  for (const auto& [uid, tenant] : tenants) {
    if (!IsTenantUid(uid)) {
      return absl::InvalidArgumentError(absl::StrCat(kTenantsSection, ".", Quoted(uid), "; allowed: ", kTenantUidAllowed));
    }
    if (!IsTenantName(tenant)) {
      return absl::InvalidArgumentError(
          absl::StrCat(kTenantsSection, ".", uid, ": ", Quoted(tenant), "; allowed: ", kTenantNameAllowed));
    }
  }
  if (const std::optional<ConfigProblem> problem = FindContradiction(*this)) {
    return absl::InvalidArgumentError(absl::StrCat(problem->section, ".", problem->name, ": ", problem->text));
  }
  return absl::OkStatus();
}

}  // namespace kvist::daemon
