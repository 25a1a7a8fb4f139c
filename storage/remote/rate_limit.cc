#include "storage/remote/rate_limit.h"

#include <algorithm>

namespace kvist::remote {

RateLimit::RateLimit(Options options, absl::Time now)
    : options_(options), tokens_(static_cast<double>(options.burst.value)), filled_(now) {}

bool RateLimit::Take(Bytes bytes, absl::Time now) {
  if (options_.bytes_per_second.value == 0) return true;
  Fill(now);
  if (tokens_ < Wanted(bytes)) return false;
  tokens_ -= static_cast<double>(bytes.value);
  return true;
}

absl::Time RateLimit::When(Bytes bytes, absl::Time now) {
  if (options_.bytes_per_second.value == 0) return now;
  Fill(now);
  const double missing = Wanted(bytes) - tokens_;
  if (missing <= 0) return now;
  // A nanosecond more: the quotient is rounded.
  return filled_ + absl::Seconds(missing / static_cast<double>(options_.bytes_per_second.value)) + absl::Nanoseconds(1);
}

void RateLimit::Fill(absl::Time now) {
  if (now <= filled_) return;
  const double earned = absl::ToDoubleSeconds(now - filled_) * static_cast<double>(options_.bytes_per_second.value);
  tokens_ = std::min(tokens_ + earned, static_cast<double>(options_.burst.value));
  filled_ = now;
}

// A little less than the burst, which sums of fractions may never quite reach.
double RateLimit::Wanted(Bytes bytes) const {
  return std::min(static_cast<double>(bytes.value), static_cast<double>(options_.burst.value) * (1 - 1e-9));
}

}  // namespace kvist::remote
