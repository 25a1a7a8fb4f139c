// What a kvistd writes about its engines at the highest log level.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/stderr_to.h"
#include "tests/support/temp_dir.h"

using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::StderrTo;
using kvist::test::TempDir;

namespace {

size_t LongestHex(const std::string& text) {
  size_t longest = 0, run = 0;
  for (const char c : text) {
    run = std::isxdigit(static_cast<unsigned char>(c)) != 0 ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

}  // namespace

TEST_CASE("The log is one JSON object a line, and holds neither keys nor what a client sent raw") {
  TempDir dir;
  const std::string log = dir.path() + "/log";
  {
    const StderrTo file(log);
    DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "log.format=json", "log.level=trace"});
    FakeEngine::Options options = FakeEngine::On(daemon.socket());
    FakeEngine engine(options);
    const auto keys = engine.Keys(1, 8);
    CHECK(engine.status.message == "");
    if (engine.status.ok()) {
      std::string wrong;
      engine.StoreAll(keys);
      engine.LoadAll(keys, &wrong);
      engine.worker(0).Wait(engine.worker(0).Store(engine.Keys(5000, 1), 0, std::vector<uint32_t>{0, 1, 2, 1 << 20}),
                            5'000'000);
    }
    options.wrong_stride = true;
    const FakeEngine refused(options);
    CHECK(!refused.status.ok());
    options.wrong_stride = false;
    options.instance = "engine\n{\"level\":\"error\"}\033[2J";  // must not make a line of its own
    const FakeEngine forging(options);
    CHECK(!forging.status.ok());
    CHECK(daemon.Terminate() == 0);
  }
  std::ifstream lines(log);
  std::string line;
  size_t records = 0;
  for (; std::getline(lines, line); ++records) {
    INFO(line);
    const auto record = nlohmann::json::parse(line, nullptr, false);
    REQUIRE(record.is_object());
    CHECK(record.size() == 3);
    CHECK(record.contains("time"));
    CHECK(record.contains("level"));
    CHECK(record.contains("message"));
    CHECK(LongestHex(line) <= 16);  // the beginning of a space's digest; a key has 64 digits
    for (const char c : line) CHECK(static_cast<unsigned char>(c) >= 0x20);
  }
  CHECK(records >= 6);  // it served two sessions, refused two, and stopped
}
