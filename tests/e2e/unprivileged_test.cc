// kvistd as a user without any rights serves engines of other users.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"

using kvist::test::BecomeUser;
using kvist::test::BinDir;
using kvist::test::ChildProcess;
using kvist::test::FakeEngine;
using kvist::test::InChild;
using kvist::test::RunProgram;
using kvist::test::TempDir;
namespace fs = std::filesystem;

namespace {

constexpr uid_t kDaemonUser = 54401, kEngineUser = 54402, kStranger = 54403;
constexpr gid_t kDaemonGroup = 54401, kEngines = 54500, kOperators = 54501, kStrangers = 54403;

// A root directory that holds nothing but a kvistd with its libraries, two groups and room for sockets and state: no /proc, no /dev. The
// real one may be closed to other users, and what it holds kvistd could come to need.
class BareRoot {
 public:
  BareRoot() {
    const char* named = std::getenv("KVISTD");
    const std::string kvistd = named != nullptr ? named : BinDir() + "/kvistd";
    std::string needed;
    REQUIRE(RunProgram({"/bin/sh", "-c", "ldd " + kvistd}, &needed) == 0);
    std::istringstream words(needed);
    for (std::string word; words >> word;) {
      if (word[0] == '/') Copy(word, dir_.path() + word);
    }
    Copy(kvistd, dir_.path() + "/kvistd");
    MakeDir("/etc", 0, 0755);
    std::ofstream(dir_.path() + "/etc/group") << "kvist:x:" << kEngines << ":\nkvist-admin:x:" << kOperators << ":\n";
    ::chmod((dir_.path() + "/etc/group").c_str(), 0644);
    MakeDir("/run", kDaemonUser, 0755);
    MakeDir("/state", kDaemonUser, 0700);
  }
  const std::string& path() const { return dir_.path(); }

 private:
  void MakeDir(const std::string& name, uid_t owner, mode_t mode) {
    const std::string path = dir_.path() + name;
    fs::create_directories(path);
    REQUIRE(::chown(path.c_str(), owner, owner) == 0);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
  }
  void Copy(const std::string& from, const std::string& to) {
    fs::create_directories(fs::path(to).parent_path());
    fs::copy_file(from, to, fs::copy_options::overwrite_existing);
    ::chmod(to.c_str(), 0755);
    for (fs::path parent = fs::path(to).parent_path(); parent != dir_.path(); parent = parent.parent_path())
      ::chmod(parent.c_str(), 0755);
  }

  TempDir dir_;
};

// kvistd in that root, as its user, when it is READY.
ChildProcess StartKvistd(const BareRoot& root) {
  std::vector<const char*> argv{"/kvistd"};
  for (const char* setting :
       {"daemon.state_dir=/state", "session.socket=/run/engine.sock", "session.socket_group=kvist",
        "admin.socket=/run/admin.sock", "admin.socket_group=kvist-admin", "pool.bytes=64MiB", "log.level=warn"}) {
    argv.insert(argv.end(), {"--set", setting});
  }
  argv.push_back(nullptr);
  int out[2];
  REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
  ChildProcess kvistd([&] {
    ::dup2(out[1], STDOUT_FILENO);
    if (::chroot(root.path().c_str()) != 0) return 92;
    for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability) >= 0; ++capability) {
      if (::prctl(PR_CAPBSET_DROP, capability) != 0) return 93;
    }
    BecomeUser("/", kDaemonUser, kDaemonGroup, {kEngines, kOperators});
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 94;
    ::execv(argv[0], const_cast<char**>(argv.data()));
    std::perror(argv[0]);
    return 95;
  });
  ::close(out[1]);
  std::string said;
  char buffer[256];
  for (pollfd ready{out[0], POLLIN, 0}; said.find("READY") == std::string::npos && ::poll(&ready, 1, 20'000) > 0;) {
    const ssize_t n = ::read(out[0], buffer, sizeof buffer);
    if (n <= 0) break;
    said.append(buffer, static_cast<size_t>(n));
  }
  ::close(out[0]);
  CHECK(said == "READY\n");
  return kvistd;
}

// How a child that does `work` in the sockets' directory as this user ends.
template <class Work>
int AsUser(const BareRoot& root, uid_t user, gid_t group, Work work) {
  return InChild([&] {
    BecomeUser(root.path() + "/run", user, group);
    return work();
  });
}

// 0, or the errno of connecting.
int Connect(const char* socket, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, socket);
  const int fd = ::socket(AF_UNIX, type, 0);
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

}  // namespace

TEST_CASE("kvistd without any right serves an engine of another user, whom a group lets in") {
  if (kvist::test::kSanitized) {
    WARN("skipped: sanitizers need /proc, which this kvistd doesn't get");
    return;
  }
  if (::getuid() != 0) {
    WARN("skipped: only root can start processes of other users");
    return;
  }
  const BareRoot root;
  ChildProcess kvistd = StartKvistd(root);

  std::map<std::string, std::string> status;
  std::ifstream lines("/proc/" + std::to_string(kvistd.pid()) + "/status");
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(":\t");
    if (colon != std::string::npos) status[line.substr(0, colon)] = line.substr(colon + 2);
  }
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}) CHECK(status[set] == "0000000000000000");
  CHECK(status["NoNewPrivs"] == "1");
  CHECK(status["Uid"] == "54401\t54401\t54401\t54401");

  for (const bool sealed : {true, false}) {
    INFO("memory that is " << (sealed ? "mapped" : "copied through its descriptor"));
    CHECK(AsUser(root, kEngineUser, kEngines, [&] {
            FakeEngine::Options options = FakeEngine::On("engine.sock");
            options.sealed = sealed;
            options.model = sealed ? "sealed" : "unsealed";
            FakeEngine engine(options);
            if (!engine.status.ok()) return 1;
            const auto keys = engine.Keys(1, 8);
            const kvist_result stored = engine.StoreAll(keys);
            if (stored.status != KVIST_OK || stored.chunks_copied != 8) return 2;
            std::string wrong;
            if (engine.LoadAll(keys, &wrong) != 8) return 3;
            return wrong.empty() ? 0 : 4;
          }) == 0);
  }
  // Memory that is in no memfd: kvistd has no right but those of its uid, so the kernel decides, too.
  const auto in_process = [&](uid_t user, gid_t group, bool dumpable) {
    return AsUser(root, user, group, [&] {
      ::prctl(PR_SET_DUMPABLE, dumpable ? 1 : 0);  // as after an exec; a change of users leaves it off
      FakeEngine::Options options = FakeEngine::On("engine.sock");
      options.in_process = true;
      options.model = "process";
      FakeEngine engine(options);
      if (!engine.status.ok()) return 100 + static_cast<int>(engine.status.code);
      const auto keys = engine.Keys(1, 8);
      std::string wrong;
      return engine.StoreAll(keys).chunks_copied == 8 && engine.LoadAll(keys, &wrong) == 8 && wrong.empty() ? 0 : 1;
    });
  };
  CHECK(in_process(kDaemonUser, kDaemonGroup, true) == 0);
  CHECK(in_process(kDaemonUser, kDaemonGroup, false) == 100 + KVIST_PERMISSION_DENIED);
  CHECK(in_process(kEngineUser, kEngines, true) == 100 + KVIST_PERMISSION_DENIED);

  CHECK(AsUser(root, kStranger, kStrangers, [] { return Connect("engine.sock", SOCK_SEQPACKET); }) == EACCES);
  CHECK(AsUser(root, kEngineUser, kEngines, [] { return Connect("admin.sock", SOCK_STREAM); }) == EACCES);
  CHECK(AsUser(root, kStranger, kOperators, [] { return Connect("admin.sock", SOCK_STREAM); }) == 0);

  std::string out;
  REQUIRE(RunProgram({BinDir() + "/kvistctl", "--socket", root.path() + "/run/admin.sock", "-o", "json", "status"}, &out) ==
          0);
  const nlohmann::json node = nlohmann::json::parse(out);
  CHECK(node["chunks_stored"] == 24);
  CHECK(node["chunks_loaded"] == 24);
  REQUIRE(node["spaces"].size() == 4);
  CHECK(node["spaces"][0]["tenant"] == "uid:54402");

  kvistd.Signal(SIGTERM);
  CHECK(kvistd.Wait() == 0);
}
