#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "daemon/config.h"
#include "daemon/config_text.h"
#include "daemon/socket_dir.h"
#include "storage/base/check.h"
#include "storage/base/runtime_dir.h"
#include "storage/base/unique_fd.h"
#include "tests/support/temp_dir.h"

namespace kvist::daemon {
namespace {

// An environment variable for as long as this object lives.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    Set(value);
  }
  ~Environment() { Set(before_ ? before_->c_str() : nullptr); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void Set(const char* value) { value == nullptr ? unsetenv(name_) : setenv(name_, value, 1); }
  const char* name_;
  std::optional<std::string> before_;
};

// Another effective user for as long as this object lives; only root can.
class OtherUser {
 public:
  explicit OtherUser(uid_t uid) { KVIST_CHECK(seteuid(uid) == 0); }
  ~OtherUser() { KVIST_CHECK(seteuid(0) == 0); }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;
};
constexpr uid_t kUid = 54321;

// A file system of its own for as long as this object lives: a root that everybody may enter (this machine's may be closed) with an
// empty /tmp. Only root can.
class OwnRoot {
 public:
  OwnRoot() {
    std::filesystem::create_directory(dir_ / "tmp");
    std::filesystem::permissions(dir_ / "tmp", std::filesystem::perms::all);
    std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
    KVIST_CHECK(before_ && chroot(dir_.path().c_str()) == 0 && chdir("/") == 0);
  }
  ~OwnRoot() { KVIST_CHECK(fchdir(before_.get()) == 0 && chroot(".") == 0 && chdir(cwd_.c_str()) == 0); }
  OwnRoot(const OwnRoot&) = delete;
  OwnRoot& operator=(const OwnRoot&) = delete;

 private:
  const test::TempDir dir_;
  const std::string cwd_ = std::filesystem::current_path();
  const UniqueFd before_{open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)};
};

Options Filled(Options options = {}) {
  const absl::Status status = FillDefaults(&options);
  INFO(status.ToString());
  REQUIRE(status.ok());
  REQUIRE(options.Validate().ok());
  return options;
}

TEST_CASE("FillDefaults leaves what was given") {
  const absl::StatusOr<Options> parsed = ParseConfig(R"(
      daemon.state_dir = "/a"
      daemon.node = "node-a"
      session.socket = "/b"
      admin.socket = "/c"
      ssd.path = "/d"
      pool.bytes = "34MiB"
      pool.slab_bytes = "64KiB")",
                                                     "f");
  REQUIRE(parsed.ok());
  const Options& given = *parsed;
  CHECK(PrintConfig(Filled(given)) == PrintConfig(given));
}

TEST_CASE("FillDefaults calls the node as the host is called") {
  char host[65] = "";
  REQUIRE(gethostname(host, sizeof host - 1) == 0);
  CHECK(Filled().daemon.node == host);
}

TEST_CASE("FillDefaults chooses a pool that the machine has room for, and at least 16 slabs") {
  const Options filled = Filled();
  CHECK(filled.pool.bytes >= MiB(32));
  CHECK(filled.pool.bytes.value % MiB(2).value == 0);
  CHECK(filled.pool.bytes / filled.pool.slab_bytes >= 16);
  struct Case {
    Bytes pool, slab;
  };
  for (const Case& c :
       {Case{GiB(64), MiB(64)}, Case{GiB(1), MiB(64)}, Case{GiB(1) - MiB(2), MiB(32)}, Case{MiB(512), MiB(32)},
        Case{MiB(100), MiB(4)}, Case{MiB(34), MiB(2)}, Case{MiB(2), MiB(2)}, Case{MiB(1), MiB(1)}, Case{KiB(12), KiB(8)}}) {
    INFO(c.pool.value);
    Options options;
    options.pool.bytes = c.pool;
    CHECK(Filled(options).pool.slab_bytes == c.slab);
  }
}

TEST_CASE("FillDefaults uses the system's directories for root") {
  if (geteuid() != 0) {
    WARN("skipped: not root");
    return;
  }
  const Options filled = Filled();
  CHECK(filled.daemon.state_dir == "/var/lib/kvist");
  CHECK(filled.ssd.path == "/var/lib/kvist/ssd");
  CHECK(filled.session.socket == "/run/kvist/engine.sock");
  CHECK(filled.admin.socket == "/run/kvist/admin.sock");
}

TEST_CASE("FillDefaults uses a user's own directories for others") {
  if (geteuid() != 0) {
    WARN("skipped: not root, so no other user can be tried");
    return;
  }
  const OtherUser user(kUid);
  {
    const Environment runtime("XDG_RUNTIME_DIR", "/run/user/54321");
    const Environment state("XDG_STATE_HOME", "/home/x/state");
    const Options filled = Filled();
    CHECK(filled.session.socket == "/run/user/54321/kvist/engine.sock");
    CHECK(filled.admin.socket == "/run/user/54321/kvist/admin.sock");
    CHECK(filled.daemon.state_dir == "/home/x/state/kvist");
  }
  const Environment runtime("XDG_RUNTIME_DIR", nullptr);
  const Environment state("XDG_STATE_HOME", "relative, so not for us");
  const Environment home("HOME", "/home/x");
  CHECK(Filled().session.socket == "/tmp/kvist-54321/engine.sock");
  CHECK(Filled().daemon.state_dir == "/home/x/.local/state/kvist");
  const Environment no_home("HOME", nullptr);
  Options options;
  CHECK(FillDefaults(&options).code() == absl::StatusCode::kFailedPrecondition);  // nobody has this uid
}

TEST_CASE("FillDefaults and MakeSocketDir keep away from a directory in /tmp that isn't private") {
  if (geteuid() != 0) {
    WARN("skipped: not root, so no other user can be tried");
    return;
  }
  const OwnRoot root;
  const std::string dir = "/tmp/kvist-54321";
  const Environment runtime("XDG_RUNTIME_DIR", nullptr);
  Options options;
  options.daemon.state_dir = "/a";
  options.pool.bytes = MiB(64);
  std::filesystem::create_directory(dir);  // root's, so not theirs
  {
    const OtherUser user(kUid);
    CHECK(FillDefaults(&options).code() == absl::StatusCode::kFailedPrecondition);
    CHECK(MakeSocketDir("session.socket", dir + "/engine.sock").code() == absl::StatusCode::kFailedPrecondition);
  }
  std::filesystem::remove_all(dir);
  {
    const OtherUser user(kUid);
    CHECK(MakeSocketDir("session.socket", dir + "/engine.sock").ok());
    CHECK(IsPrivateDir(dir));
    CHECK(FillDefaults(&options).ok());
    std::filesystem::permissions(dir, std::filesystem::perms::owner_all | std::filesystem::perms::others_exec);
    CHECK(MakeSocketDir("session.socket", dir + "/engine.sock").code() == absl::StatusCode::kFailedPrecondition);
  }
}

TEST_CASE("MakeSocketDir makes only the last directory") {
  const test::TempDir dir;
  CHECK(MakeSocketDir("session.socket", dir / "a/engine.sock").ok());
  CHECK(MakeSocketDir("session.socket", dir / "a/engine.sock").ok());
  CHECK(std::filesystem::is_directory(dir / "a"));
  CHECK(MakeSocketDir("session.socket", dir / "b/c/engine.sock").code() == absl::StatusCode::kNotFound);
  CHECK(MakeSocketDir("session.socket", "/engine.sock").ok());
}

}  // namespace
}  // namespace kvist::daemon
