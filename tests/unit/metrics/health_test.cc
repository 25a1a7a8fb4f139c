#include "daemon/metrics/health.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "storage/base/unique_fd.h"
#include "tests/support/temp_dir.h"

namespace kvist::metrics {
namespace {

using Catch::Contains;

UniqueFd BindAt(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

TEST_CASE("Health is well when all parts are, and names those that are not") {
  Health health({"a", "b"});
  CHECK_THAT(std::string(health.Look()[1].status.message()), Contains("starting"));
  absl::Status of_b = absl::OkStatus();
  health.Watch("a", [] { return absl::OkStatus(); });
  health.Watch("b", [&] { return of_b; });
  REQUIRE(health.Look().size() == 2);
  CHECK(health.Look()[0].status.ok());
  CHECK(health.Look()[1].status.ok());
  of_b = absl::UnavailableError("broken");
  CHECK(health.Look()[0].status.ok());
  CHECK(health.Look()[1].part == "b");
  CHECK(health.Look()[1].status.message() == "broken");
  health.Stopping();
  for (const Health::Row& row : health.Look()) CHECK_THAT(std::string(row.status.message()), Contains("stopping"));
}

TEST_CASE("Health tells parts that a node can do without from those that it needs") {
  Health health({"a"});
  health.Mind("disk", [] { return absl::UnavailableError("slow"); });
  const std::vector<Health::Row> rows = health.Look();
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].needed);
  CHECK(rows[1].part == "disk");
  CHECK(!rows[1].needed);
  CHECK(rows[1].status.message() == "slow");
}

TEST_CASE("SocketInPlace sees a socket that was removed and one that was replaced") {
  test::TempDir dir;
  const std::string path = dir / "engine.sock";
  const UniqueFd first = BindAt(path);
  const Health::Check check = SocketInPlace(path);
  CHECK(check().ok());
  const std::string kept = dir / "kept";
  REQUIRE(::rename(path.c_str(), kept.c_str()) == 0);
  CHECK_THAT(std::string(check().message()), Contains("is gone"));
  const UniqueFd second = BindAt(path);
  CHECK_THAT(std::string(check().message()), Contains("another's"));
  REQUIRE(::rename(kept.c_str(), path.c_str()) == 0);
  CHECK(check().ok());
}

}  // namespace
}  // namespace kvist::metrics
