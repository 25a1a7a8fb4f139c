// What a kvistd writes about its engines at the highest log level.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/numa_nodes.h"
#include "tests/support/raw_client.h"
#include "tests/support/stderr_to.h"
#include "tests/support/temp_dir.h"

using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::RawClient;
using kvist::test::StderrTo;
using kvist::test::TempDir;

namespace {

constexpr const char* kFields[] = {"time", "level", "message", "session", "tenant", "space", "job", "pin"};

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
  size_t records = 0, served = 0, near_a_node = 0;
  for (; std::getline(lines, line); ++records) {
    INFO(line);
    const auto record = nlohmann::json::parse(line, nullptr, false);
    REQUIRE(record.is_object());
    for (const auto& [name, value] : record.items()) {
      INFO(name);
      CHECK(std::count(std::begin(kFields), std::end(kFields), name) == 1);
    }
    CHECK(record.contains("time"));
    CHECK(record.contains("level"));
    CHECK(record.contains("message"));
    // Whose it is stands beside the text.
    const std::string message = record["message"];
    const std::string number = std::to_string(record.value("session", uint64_t{0}));
    CHECK((message.rfind("session ", 0) == 0) == (number != "0"));
    if (number != "0") {
      CHECK(message.rfind("session " + number + " ", 0) == 0);
      CHECK(record["tenant"] == "uid:" + std::to_string(::geteuid()));
    }
    if (message.find(" is served in space ") != std::string::npos) {
      ++served;
      CHECK(record["space"].get<std::string>().size() == 16);
      CHECK(message.find(" is served in space " + record["space"].get<std::string>()) != std::string::npos);
      near_a_node += message.find(", its memory near NUMA node ") != std::string::npos ? 1 : 0;
    }
    CHECK(LongestHex(line) <= 16);  // the beginning of a space's digest; a key has 64 digits
    for (const char c : line) CHECK(static_cast<unsigned char>(c) >= 0x20);
  }
  CHECK(served >= 2);
  CHECK(near_a_node == (kvist::test::TellsNumaNodes() ? 1 : 0));  // the worker's
  CHECK(records >= 6);                                            // it served two sessions, refused two, and stopped
}

TEST_CASE("The log holds neither the tokens nor the keys of prompts that operators name, in either format") {
  const std::string format = GENERATE("text", "json");
  INFO(format);
  TempDir dir;
  const std::string log = dir.path() + "/log", tokens = dir.path() + "/tokens", keys = dir.path() + "/keys";
  constexpr uint32_t kFirst = 1'000'000'007;  // no other number in a log looks like these
  {
    std::ofstream as_tokens(tokens), as_keys(keys);
    for (uint32_t t = 0; t < 4 * FakeEngine::kChunkTokens; ++t) as_tokens << kFirst + t << " ";
    for (char digit : {'a', 'b', 'c'}) as_keys << std::string(64, digit) << "\n";
  }
  size_t asked = 0;
  {
    const StderrTo file(log);
    DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "log.format=" + format, "log.level=trace"});
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.message == "");
    const auto stored = engine.Keys(1, 8);
    REQUIRE(engine.StoreAll(stored).status == KVIST_OK);
    for (const std::string& named : {"--tokens=" + tokens, "--keys=" + keys}) {
      for (const std::vector<std::string>& command :
           std::vector<std::vector<std::string>>{{"lookup"},
                                                 {"pins", "add", "--owner=op"},
                                                 {"prefetch"},
                                                 {"move", "--from=dram", "--to=ssd"},
                                                 {"clear", "--yes"}}) {
        std::vector<std::string> words{kvist::test::BinDir() + "/kvistctl", "--socket=" + daemon.admin_socket()};
        words.insert(words.end(), command.begin(), command.end());
        words.push_back(named);
        std::string said;
        kvist::test::RunProgram(words, &said);  // refused or not
        ++asked;
      }
    }
    CHECK(daemon.Terminate() == 0);
  }
  std::ifstream lines(log);
  std::string line;
  size_t records = 0;
  for (; std::getline(lines, line); ++records) {
    INFO(line);
    CHECK(LongestHex(line) <= 16);
    CHECK(line.find("10000000") == std::string::npos);
  }
  CHECK(records >= 2);
  CHECK(asked == 10);
}

TEST_CASE(
    "A client that is refused in a loop, or comes and goes in one, writes some lines into the log, not one each time") {
  TempDir dir;
  const std::string log = dir.path() + "/log";
  constexpr int kTimes = 2000;
  const auto begin = std::chrono::steady_clock::now();
  {
    const StderrTo file(log);
    const DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "pool.touch_threads=0", "log.level=info"});
    // Until a second is over, too: then there is a line that tells of the others.
    for (int i = 0; i < kTimes || std::chrono::steady_clock::now() - begin < std::chrono::seconds(3); ++i) {
      RawClient client(daemon);
      if (i % 2 == 0) {
        client.SendBytes("no ClientFrame", {});
        CHECK(client.Receive()->has_refused());
      } else {
        client.Open();
      }
    }
  }
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin).count() + 1;
  std::ifstream lines(log);
  std::string line;
  int refused = 0, served = 0, ended = 0, told = 0;
  while (std::getline(lines, line)) {
    refused += line.find(" is refused: ") != std::string::npos ? 1 : 0;
    served += line.find(" is served in ") != std::string::npos ? 1 : 0;
    ended += line.find(" ends: ") != std::string::npos ? 1 : 0;
    told += line.find(" since the last such line)") != std::string::npos ? 1 : 0;
  }
  INFO(seconds << " s: " << refused << " refused, " << served << " served, " << ended << " ended, " << told << " told");
  for (const int count : {refused, served, ended}) {
    CHECK(count >= 8);
    CHECK(count <= 128 + seconds);
  }
  CHECK(refused <= 8 + seconds);
  CHECK(told > 0);
}
