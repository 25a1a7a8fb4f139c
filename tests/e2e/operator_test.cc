// What an operator does with a real kvistd.
#include <catch2/catch.hpp>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"

using kvist::test::BinDir;
using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::RunProgram;
using kvist::test::TempDir;

namespace {

// kvistd with these arguments; what it writes to stdout, and its exit status.
std::pair<int, std::string> Kvistd(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), BinDir() + "/kvistd");
  std::string out;
  const int status = RunProgram(arguments, &out);
  return {status, out};
}

}  // namespace

TEST_CASE("What config dump and config default print is a configuration that kvistd takes") {
  TempDir dir;
  const std::string file = dir.path() + "/kvistd.toml", again = dir.path() + "/again.toml";
  const auto [status, defaults] = Kvistd({"config", "default"});
  REQUIRE(status == 0);
  std::ofstream(file) << defaults;
  const std::vector<std::string> sets{
      "--set", "daemon.state_dir=" + dir.path() + "/state",  "--set", "session.socket=" + dir.path() + "/engine.sock",
      "--set", "admin.socket=" + dir.path() + "/admin.sock", "--set", "pool.bytes=64MiB"};
  const auto with_sets = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), sets.begin(), sets.end());
    return Kvistd(arguments);
  };
  CHECK(with_sets({"config", "check", "--config", file}) == std::pair(0, file + ": ok\n"));
  const auto [dumped, dump] = with_sets({"--config", file, "config", "dump"});
  REQUIRE(dumped == 0);
  std::ofstream(again) << dump;
  CHECK(Kvistd({"--config", again, "config", "dump"}) == std::pair(0, dump));
  const auto diff = nlohmann::json::parse(with_sets({"--config", file, "config", "diff", "-o", "json"}).second);
  REQUIRE(diff.size() == 4);
  CHECK(diff[3] == nlohmann::json{{"key", "pool.bytes"}, {"value", "64MiB"}, {"default", 0}});

  std::ofstream(file) << "[pool]\nbytes = 1\nbite = 2\n";
  const auto [refused, verdict] = Kvistd({"--config", file, "config", "check", "-o", "json"});
  CHECK(refused == 2);
  CHECK(nlohmann::json::parse(verdict)["errors"].size() == 2);
  CHECK(Kvistd({"--config", file}).first == 2);
}
