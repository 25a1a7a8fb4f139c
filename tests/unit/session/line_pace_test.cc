#include "daemon/session/line_pace.h"

#include <catch2/catch.hpp>

namespace kvist::session {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST_CASE("LinePace has the first lines of a user written, then one a second that tells of the others") {
  LinePace pace(3);
  for (int i = 0; i < 3; ++i) CHECK(pace.Take(7, kStart) == 1);
  for (int i = 0; i < 10; ++i) CHECK(pace.Take(7, kStart + absl::Milliseconds(500)) == 0);
  CHECK(pace.Take(7, kStart + absl::Seconds(1)) == 11);
  CHECK(pace.Take(7, kStart + absl::Seconds(1)) == 0);
  CHECK(pace.Take(7, kStart + absl::Milliseconds(1900)) == 0);
  CHECK(pace.Take(7, kStart + absl::Seconds(2)) == 3);
  CHECK(pace.Take(8, kStart + absl::Seconds(2)) == 1);  // another user's are another's
  for (int i = 0; i < 3; ++i) CHECK(pace.Take(7, kStart + absl::Hours(1)) == 1);
  CHECK(pace.Take(7, kStart + absl::Hours(1)) == 0);
}

TEST_CASE("LinePace writes at most so many lines whatever number of users there is") {
  LinePace pace(2);
  uint64_t lines = 0;
  for (int turn = 0; turn < 4; ++turn) {
    for (uid_t uid = 0; uid < 10'000; ++uid) lines += pace.Take(uid, kStart) > 0 ? 1 : 0;
  }
  CHECK(lines == 2 * (LinePace::kUsersMax + 1));
  // Who comes once those are quiet has a pace of its own.
  for (uid_t uid = 20'000; uid < 20'000 + LinePace::kUsersMax; ++uid) CHECK(pace.Take(uid, kStart + absl::Hours(1)) == 1);
}

TEST_CASE("A line says how many it stands for, if not for itself alone") {
  CHECK(Unwritten(1) == "");
  CHECK(Unwritten(5) == " (5 since the last such line)");
}

}  // namespace
}  // namespace kvist::session
