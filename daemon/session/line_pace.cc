#include "daemon/session/line_pace.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvist::session {
namespace {

constexpr absl::Duration kEach = absl::Seconds(1);

}  // namespace

uint64_t LinePace::Take(uid_t uid, absl::Time now) {
  Pace& pace = Of(uid, now);
  ++pace.unwritten;
  const absl::Time free_at = std::max(pace.free_at, now) + kEach;
  if (free_at > now + at_once_ * kEach) return 0;
  pace.free_at = free_at;
  return std::exchange(pace.unwritten, 0);
}

LinePace::Pace& LinePace::Of(uid_t uid, absl::Time now) {
  if (const auto found = users_.find(uid); found != users_.end()) return found->second;
  // Those who have been quiet are as if they had never come.
  if (users_.size() >= kUsersMax) std::erase_if(users_, [&](const auto& user) { return user.second.free_at <= now; });
  return users_.size() < kUsersMax ? users_[uid] : others_;
}

std::string Unwritten(uint64_t lines) { return lines <= 1 ? "" : absl::StrCat(" (", lines, " since the last such line)"); }

}  // namespace kvist::session
