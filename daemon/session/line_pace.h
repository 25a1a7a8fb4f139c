#ifndef KVIST_DAEMON_SESSION_LINE_PACE_H_
#define KVIST_DAEMON_SESSION_LINE_PACE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/time/time.h"

namespace kvist::session {

// Keeps who does something as often as it likes from filling the log: of one user's lines the first `at_once` are written, and from then on
// one a second, with how many weren't. A second in which one has nothing to write gives it back one of the first.
//
// Bounds: kUsersMax users, beyond which they share a pace.
// Threads: one.
class LinePace {
 public:
  static constexpr size_t kUsersMax = 256;

  explicit LinePace(uint32_t at_once) : at_once_(at_once) {}

  // Whether a line about this user is to be written now, on the monotonic clock: how many lines it stands for, itself and those that were not
  // since the last one that was; or 0.
  uint64_t Take(uid_t uid, absl::Time now);

 private:
  struct Pace {
    absl::Time free_at = absl::InfinitePast();  // when it has all of the first again
    uint64_t unwritten = 0;
  };
  Pace& Of(uid_t uid, absl::Time now);

  const uint32_t at_once_;
  std::unordered_map<uid_t, Pace> users_;
  Pace others_;
};

// What ends a line that stands for so many; "" for one that stands for itself.
std::string Unwritten(uint64_t lines);

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_LINE_PACE_H_
