// Programs that are called wrongly: what was wrong, what would be right, and the exit status that their help promises.
#include <catch2/catch.hpp>

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/unique_fd.h"
#include "tests/support/daemon_process.h"
#include "tests/support/temp_dir.h"

namespace {

using Words = std::vector<std::string>;

// The exit status, and what is said on stdout and stderr.
std::pair<int, std::string> Call(const std::string& program, const Words& words) {
  Words argv{"/bin/sh", "-c", R"(exec "$0" "$@" 2>&1)", kvist::test::BinDir() + "/" + program};
  argv.insert(argv.end(), words.begin(), words.end());
  std::string said;
  const int status = kvist::test::RunProgram(argv, &said);
  return {status, said};
}

}  // namespace

TEST_CASE("tinyllm says of wrong usage which option, what it was given and what is allowed, and ends with 1") {
  const auto refused = [](const Words& words, const std::string& why) {
    const auto [status, said] = Call("tinyllm", words);
    INFO(said);
    CHECK(status == 1);
    CHECK_THAT(said, Catch::StartsWith("tinyllm: " + why + "\n"));
  };
  const auto range = [&](const std::string& option, const std::string& given, const std::string& allowed) {
    refused({"demo", option + "=" + given}, option + ": must be a whole number from " + allowed + "; it is " + given);
  };
  range("--document-count", "0", "1 to 1000");
  range("--document-bytes", "99999999999999999", "1024 to 16384");
  range("--document-bytes", "1023", "1024 to 16384");
  range("--rounds", "5", "1 to 4");
  range("--answer-tokens", "0", "1 to 1000");
  range("--kv-tokens", "8", "16 to 16777216");
  range("--kv-tokens", "99999999999999999999999", "16 to 16777216");
  range("--batch-tokens", "0", "1 to 16384");
  range("--threads", "-1", "0 to 1024");
  range("--threads", "1.5", "0 to 1024");
  refused({}, "a command is missing; there is: demo");
  refused({"extra"}, "extra: no such command or option; there is: demo");
  refused({"demo", "extra"}, "The following argument was not expected: extra");
  for (const Words& help : {Words{"--help"}, Words{"demo", "--help"}}) CHECK(Call("tinyllm", help).first == 0);
}

TEST_CASE("kvistd names the word that is no command of its, and ends with 2") {
  const auto refused = [](const Words& words, const std::string& why) {
    const auto [status, said] = Call("kvistd", words);
    INFO(said);
    CHECK(status == 2);
    CHECK_THAT(said, Catch::StartsWith(why + "\n"));
  };
  refused({"confg"}, "kvistd: confg: no such command (did you mean config?); there are: config");
  refused({"config", "chekc"},
          "kvistd config: chekc: no such command (did you mean check?); there are: check, default, dump, diff");
  refused({"config"}, "kvistd config: a command is missing; there are: check, default, dump, diff");
}

TEST_CASE("kvistd and kvist-controller print their completion scripts and manual pages") {
  for (const std::string program : {"kvistd", "kvist-controller"}) {
    INFO(program);
    for (const std::string shell : {"bash", "zsh", "fish"}) {
      const auto [status, said] = Call(program, {"--completion", shell});
      CHECK(status == 0);
      CHECK_THAT(said, Catch::Contains("config") && Catch::Contains(program));
    }
    const auto [status, said] = Call(program, {"--completion", "tcsh"});
    CHECK(status == 2);
    CHECK_THAT(said, Catch::Contains("--completion") && Catch::Contains("bash"));
    CHECK_THAT(Call(program, {"--man"}).second, Catch::StartsWith(".TH"));
  }
}

TEST_CASE("A kvistd whose socket is taken leaves no state directory that wasn't there") {
  const kvist::test::TempDir dir, others;
  const std::string taken = others.path() + "/engine.sock";
  const kvist::UniqueFd living(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, taken.c_str());
  REQUIRE(::bind(living.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(living.get(), 1) == 0);
  const Words start{"--set", "daemon.state_dir=" + dir.path() + "/state", "--set", "session.socket=" + taken,
                    "--set", "admin.socket=" + dir.path() + "/admin.sock"};
  const auto [status, said] = Call("kvistd", start);
  INFO(said);
  CHECK(status == 1);
  CHECK_THAT(said, Catch::Contains("session.socket: another process answers at " + taken));
  CHECK(std::filesystem::is_empty(dir.path()));
  std::filesystem::create_directory(dir.path() + "/state");
  std::filesystem::permissions(dir.path() + "/state", std::filesystem::perms::owner_all);
  CHECK(Call("kvistd", start).first == 1);
  CHECK(std::filesystem::exists(dir.path() + "/state/lock"));
}
