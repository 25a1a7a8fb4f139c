#include "storage/base/socket_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"

namespace kvist {
namespace {

constexpr int kType = SOCK_SEQPACKET;
constexpr uid_t kOther = 65534;

UniqueFd Bound(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, kType | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

TEST_CASE("FreeSocketPath removes a dead socket, and nothing that may be alive") {
  const test::TempDir dir;
  const std::string path = dir / "a.sock";
  const auto code = [&] { return FreeSocketPath(path, "x.socket", kType).status().code(); };
  CHECK(code() == absl::StatusCode::kOk);
  UniqueFd living = Bound(path);
  CHECK(code() == absl::StatusCode::kOk);  // bound and not listening, and nobody has the lock: its owner is dead
  CHECK(SocketFileAt(path) == SocketFile{});
  living = Bound(path);
  REQUIRE(::listen(living.get(), 0) == 0);
  const SocketFile file = SocketFileAt(path);
  CHECK(code() == absl::StatusCode::kAlreadyExists);
  CHECK(FreeSocketPath(path, "x.socket", SOCK_STREAM).status().code() == absl::StatusCode::kAlreadyExists);
  CHECK(SocketFileAt(path) == file);
  living.reset();
  CHECK(code() == absl::StatusCode::kOk);
  CHECK(SocketFileAt(path) == SocketFile{});

  const UniqueFd plain(::open(path.c_str(), O_CREAT | O_CLOEXEC, 0600));
  CHECK(code() == absl::StatusCode::kAlreadyExists);
  CHECK(FreeSocketPath("", "x.socket", kType).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(FreeSocketPath("/" + std::string(200, 'x'), "x.socket", kType).status().code() ==
        absl::StatusCode::kInvalidArgument);
  const absl::Status missing = FreeSocketPath(dir / "none/a.sock", "x.socket", kType).status();
  CHECK_THAT(std::string(missing.message()), Catch::StartsWith("x.socket: can't make a socket in " + dir / "none/"));
}

// What FreeSocketPath says to a user who isn't root.
absl::StatusCode AsAnother(const std::string& path) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresgid(kOther, kOther, kOther) != 0 || ::setresuid(kOther, kOther, kOther) != 0) ::_exit(127);
    ::_exit(static_cast<int>(FreeSocketPath(path, "x.socket", kType).status().code()));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return static_cast<absl::StatusCode>(WEXITSTATUS(status));
}

TEST_CASE("FreeSocketPath takes a socket that it may not connect to for a living one, but for its own") {
  if (::geteuid() != 0) {
    WARN("skipped: needs root, to be another user");
    return;
  }
  const test::TempDir dir;
  const std::string path = dir / "a.sock";
  REQUIRE(::chown(dir.path().c_str(), kOther, kOther) == 0);  // so that it may unlink what is there
  UniqueFd living = Bound(path);
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  REQUIRE(::listen(living.get(), 1) == 0);
  CHECK(AsAnother(path) == absl::StatusCode::kAlreadyExists);
  const SocketFile file = SocketFileAt(path);
  CHECK(file != SocketFile{});

  // The same user's, from before OpenSocketTo: it is asked, too, and stays as closed as it was.
  REQUIRE(::chown(path.c_str(), kOther, kOther) == 0);
  REQUIRE(::chmod(path.c_str(), 0) == 0);
  CHECK(AsAnother(path) == absl::StatusCode::kAlreadyExists);
  struct stat found {};
  REQUIRE(::lstat(path.c_str(), &found) == 0);
  CHECK((found.st_mode & 07777) == 0);
  CHECK(SocketFileAt(path) == file);
  living.reset();  // as a kvistd does that is killed then
  CHECK(AsAnother(path) == absl::StatusCode::kOk);
  CHECK(SocketFileAt(path) == SocketFile{});
}

TEST_CASE("FreeSocketPath lets one of many have the place of a dead socket, however long it takes to listen") {
  const test::TempDir dir;
  const std::string path = dir / "a.sock";
  Bound(path).reset();
  std::atomic<int> listening{0}, refused{0};
  std::vector<std::thread> all;
  for (int i = 0; i < 8; ++i) {
    all.emplace_back([&] {
      const absl::StatusOr<UniqueFd> alone = FreeSocketPath(path, "x.socket", kType);
      if (!alone.ok()) {
        refused += absl::IsAlreadyExists(alone.status()) ? 1 : 0;
        return;
      }
      static std::vector<UniqueFd>* const kept = new std::vector<UniqueFd>;  // guarded by that lock
      UniqueFd fd = Bound(path);
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      if (::listen(fd.get(), 16) == 0) ++listening;
      kept->push_back(std::move(fd));
    });
  }
  for (std::thread& thread : all) thread.join();
  CHECK(listening == 1);
  CHECK(refused == 7);
}

TEST_CASE("FreeSocketPath passes over whoever keeps the lock, and RemoveSocketFile leaves a successor alone") {
  const test::TempDir dir;
  const std::string path = dir / "a.sock";
  const UniqueFd first = Bound(path);
  const SocketFile file = SocketFileAt(path);
  {
    const UniqueFd stranger(::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    REQUIRE(::flock(stranger.get(), LOCK_EX) == 0);
    CHECK(FreeSocketPath(path, "x.socket", kType).ok());
  }
  const UniqueFd second = Bound(path);
  RemoveSocketFile(path, file);
  CHECK(SocketFileAt(path) != SocketFile{});
  RemoveSocketFile(path, SocketFileAt(path));
  CHECK(SocketFileAt(path) == SocketFile{});
}

}  // namespace
}  // namespace kvist
