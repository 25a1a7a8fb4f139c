#ifndef KVIST_STORAGE_REMOTE_RATE_LIMIT_H_
#define KVIST_STORAGE_REMOTE_RATE_LIMIT_H_

#include "absl/time/time.h"
#include "storage/base/units.h"

namespace kvist::remote {

// A token bucket of bytes: so many a second in the long run, `burst` at once.
//
// What is larger than the burst may go when the bucket is full, and leaves a debt behind: otherwise it could never go.
// Pure: the time is passed in; one that goes backwards is taken for the latest. Threads: one at a time.
class RateLimit {
 public:
  struct Options {
    Bytes bytes_per_second{};  // 0: no limit
    Bytes burst = MiB(16);     // at least 1. Larger: less even
  };
  RateLimit(Options options, absl::Time now);

  // Takes them, or says no and takes nothing.
  bool Take(Bytes bytes, absl::Time now);
  // When Take would say yes, if nobody else takes any.
  absl::Time When(Bytes bytes, absl::Time now);

 private:
  void Fill(absl::Time now);
  double Wanted(Bytes bytes) const;

  const Options options_;
  double tokens_;  // below zero: debt
  absl::Time filled_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_RATE_LIMIT_H_
