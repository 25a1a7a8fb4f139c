#include "daemon/core/core_options.h"

#include "absl/strings/str_cat.h"

namespace kvist::core {
namespace {

bool IsShare(double share) { return share > 0 && share <= 1; }

}  // namespace

absl::Status CoreOptions::Validate() const {
  if (lease_max <= absl::ZeroDuration()) return absl::InvalidArgumentError("lease_max must be positive");
  if (doubt < absl::ZeroDuration()) return absl::InvalidArgumentError("doubt must not be negative");
  if (fill_timeout <= absl::ZeroDuration()) return absl::InvalidArgumentError("fill_timeout must be positive");
  if (!IsShare(lease_share)) return absl::InvalidArgumentError("lease_share must be above 0 and at most 1");
  if (!IsShare(private_share)) return absl::InvalidArgumentError("private_share must be above 0 and at most 1");
  if (!IsShare(pin_share)) return absl::InvalidArgumentError("pin_share must be above 0 and at most 1");
  if (slice_work == 0) return absl::InvalidArgumentError("slice_work must be positive");
  if (event_work < kEventWorkMin)
    return absl::InvalidArgumentError(absl::StrCat("event_work must be at least ", kEventWorkMin));
  return absl::OkStatus();
}

}  // namespace kvist::core
