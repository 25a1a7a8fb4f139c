#include "cuda/bus_claims.h"

#include <algorithm>

namespace kvist::cuda {

void BusClaims::Add(const std::shared_ptr<const BusClaim>& claim) {
  const absl::MutexLock lock(&mutex_);
  const auto same = [&](const auto& of) { return !of.owner_before(claim) && !claim.owner_before(of); };
  if (std::any_of(claims_.begin(), claims_.end(), same)) return;
  std::erase_if(claims_, [](const auto& of) { return of.expired(); });
  claims_.emplace_back(claim);
}

int64_t BusClaims::ClaimedUntil() {
  int64_t until = 0;
  const absl::MutexLock lock(&mutex_);
  for (const auto& of : claims_) {
    if (const auto claim = of.lock()) until = std::max(until, claim->UntilNanos());
  }
  return until;
}

absl::Duration BusClaims::StoresWait(int64_t now_nanos) {
  const int64_t until = ClaimedUntil();
  if (until <= now_nanos) {
    claimed_until_nanos_ = std::min(claimed_until_nanos_, now_nanos);
    return absl::ZeroDuration();
  }
  if (now_nanos < stores_until_nanos_) return absl::ZeroDuration();
  // One row goes on over gaps that are shorter than what was held before.
  const int64_t gap = now_nanos - claimed_until_nanos_;
  if (held_since_nanos_ == 0 || gap > claimed_until_nanos_ - held_since_nanos_) held_since_nanos_ = now_nanos;
  claimed_until_nanos_ = until;
  const int64_t end = held_since_nanos_ + absl::ToInt64Nanoseconds(kMost);
  if (now_nanos >= end) {
    held_since_nanos_ = 0;
    stores_until_nanos_ = now_nanos + absl::ToInt64Nanoseconds(kMost);
    return absl::ZeroDuration();
  }
  return absl::Nanoseconds(std::min(until, end) - now_nanos);
}

}  // namespace kvist::cuda
