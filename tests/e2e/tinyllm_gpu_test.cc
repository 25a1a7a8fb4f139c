// The example engine with its pages on a GPU, which needs none: the fake driver.
#include <catch2/catch.hpp>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/temp_dir.h"

using kvist::test::DaemonProcess;
using kvist::test::TempDir;

TEST_CASE("tinyllm with its pages on a GPU computes the same logits bit for bit, from what it stored, too") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "ssd.enabled=false"});
  std::ofstream(dir.path() + "/document") << std::string(1500, 'k') << "vist";
  const std::string logits = dir.path() + "/logits";
  const auto demo = [&](std::vector<std::string> more) {
    std::vector<std::string> argv{kvist::test::BinDir() + "/tinyllm",
                                  "demo",
                                  "--socket",
                                  daemon.socket(),
                                  "--documents",
                                  dir.path(),
                                  "--rounds",
                                  "2",
                                  "--answer-tokens",
                                  "8",
                                  "--kv-tokens",
                                  "8192"};
    argv.insert(argv.end(), more.begin(), more.end());
    std::string said;
    const int status = kvist::test::RunProgram(argv, &said);
    INFO(said);
    CHECK(said.find("verdict") != std::string::npos);
    return status;
  };
  CHECK(demo({"--without-kvist", "--phases", "cold", "--logits-out", logits}) == 0);
  CHECK(demo({"--device", "cuda", "--phases", "cold,warm", "--logits-compare", logits}) == 0);
  const nlohmann::json gpus = kvist::test::StatusOf(daemon)["gpus"];
  REQUIRE(gpus.size() == 1);
  CHECK(gpus[0]["lost"] == "");
  CHECK(demo({"--device", "cuda", "--phases", "restart", "--logits-compare", logits}) == 0);
  CHECK(demo({"--device", "cuda", "--phases", "control", "--logits-compare", logits, "--corrupt-one-page"}) == 2);
  // And what it stored from there is an engine's on a CPU.
  CHECK(demo({"--phases", "restart", "--logits-compare", logits}) == 0);
}
