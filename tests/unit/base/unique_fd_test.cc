#include "storage/base/unique_fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <utility>

namespace kvist {
namespace {

int OpenSomething() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool IsOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST_CASE("UniqueFd closes what it owns, once") {
  const int fd = OpenSomething();
  {
    UniqueFd owner(fd);
    CHECK(owner);
    CHECK(owner.get() == fd);
    CHECK(IsOpen(fd));
  }
  CHECK_FALSE(IsOpen(fd));
  CHECK_FALSE(UniqueFd());
}

TEST_CASE("UniqueFd moves and gives away without closing") {
  const int fd = OpenSomething();
  UniqueFd first(fd);
  UniqueFd second(std::move(first));
  CHECK(second.get() == fd);

  const int other = OpenSomething();
  UniqueFd third(other);
  third = std::move(second);  // closes what it had
  CHECK(third.get() == fd);
  CHECK_FALSE(IsOpen(other));
  UniqueFd& alias = third;
  third = std::move(alias);  // of itself
  CHECK(third.get() == fd);

  CHECK(third.release() == fd);
  CHECK_FALSE(third);
  third.reset();  // of nothing
  CHECK(IsOpen(fd));
  close(fd);
}

}  // namespace
}  // namespace kvist
