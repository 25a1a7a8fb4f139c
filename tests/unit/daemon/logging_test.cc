#include "daemon/logging.h"

#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "storage/base/log_subject.h"
#include "tests/support/temp_dir.h"

namespace kvist::daemon {
namespace {

// What `log` writes to stderr when it is set up as `options` say, by lines.
template <class Log>
std::vector<std::string> Lines(const Options::Log& options, Log log) {
  const test::TempDir dir;
  std::fflush(stderr);
  const int before = dup(STDERR_FILENO);
  REQUIRE(std::freopen((dir / "log").c_str(), "w", stderr) != nullptr);
  SetUpLogging(options);
  log();
  std::fflush(stderr);
  dup2(before, STDERR_FILENO);
  close(before);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("none", std::make_shared<spdlog::sinks::null_sink_mt>()));
  std::ifstream file(dir / "log");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("SetUpLogging writes text lines with time and level") {
  const std::vector<std::string> lines = Lines({.level = "info", .format = "text"}, [] {
    spdlog::info("serving {} of {}", 1, 2);
    spdlog::debug("not shown");
    spdlog::error("bad");
  });
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0], Catch::Matches("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z info  serving 1 of 2"));
  CHECK_THAT(lines[1], Catch::EndsWith("Z error bad"));
}

TEST_CASE("SetUpLogging lets nobody forge a line or steer a terminal") {
  const std::vector<std::string> lines = Lines({.level = "warn", .format = "text"},
                                               [] { spdlog::warn("model {}", "a\n2026 info fake\033[0m\u009b31m \u00e9"); });
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Catch::EndsWith("Z warn  model a\\n2026 info fake\\x1b[0m\\xc2\\x9b31m \u00e9"));
}

TEST_CASE("SetUpLogging writes one JSON object a line, whatever the message holds") {
  const std::vector<std::string> lines = Lines({.level = "trace", .format = "json"}, [] {
    spdlog::trace("quote \" backslash \\ newline \n");
    spdlog::warn("not UTF-8: {}", "\xff\xfe");
  });
  REQUIRE(lines.size() == 2);
  const nlohmann::json first = nlohmann::json::parse(lines[0]);
  CHECK(first["level"] == "trace");
  CHECK(first["message"] == "quote \" backslash \\ newline \n");
  CHECK(first["time"].get<std::string>().size() == 24);
  CHECK(nlohmann::json::parse(lines[1])["level"] == "warn");
}

TEST_CASE("SetUpLogging writes what a line is about beside its text, in JSON and on the thread that knows it") {
  const auto log = [] {
    const LogSubject outer({.session = 7, .tenant = "blue", .space = std::string(64, 'a')});
    spdlog::info("of a session");
    {
      const LogSubject inner({.job = 3});
      spdlog::info("of a job");
    }
    spdlog::info("of the session again");
    std::thread([] { spdlog::info("of nothing"); }).join();
  };
  const std::vector<std::string> lines = Lines({.level = "info", .format = "json"}, log);
  REQUIRE(lines.size() == 4);
  const nlohmann::json first = nlohmann::json::parse(lines[0]), second = nlohmann::json::parse(lines[1]);
  CHECK(first["session"] == 7);
  CHECK(first["tenant"] == "blue");
  CHECK(first["space"] == std::string(16, 'a'));  // no more, whoever gives more
  CHECK(first.size() == 6);
  CHECK(second["job"] == 3);
  CHECK(second.size() == 4);
  CHECK(nlohmann::json::parse(lines[2])["session"] == 7);
  CHECK(nlohmann::json::parse(lines[3]).size() == 3);
  CHECK_THAT(Lines({.level = "info", .format = "text"}, log)[0], Catch::EndsWith("Z info  of a session"));
}

TEST_CASE("ChangeLogging changes level and format of the lines that follow") {
  const std::vector<std::string> lines = Lines({.level = "warn", .format = "text"}, [] {
    spdlog::info("not shown");
    spdlog::warn("text");
    ChangeLogging({.level = "error", .format = "json"});
    spdlog::warn("not shown");
    spdlog::error("json");
    ChangeLogging({.level = "info", .format = "text"});
    spdlog::info("text again");
  });
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[0], Catch::EndsWith("Z warn  text"));
  CHECK(nlohmann::json::parse(lines[1])["message"] == "json");
  CHECK_THAT(lines[2], Catch::EndsWith("Z info  text again"));
}

TEST_CASE("SetUpLogging keeps to its level") {
  const auto log = [] {
    spdlog::trace("x");
    spdlog::debug("x");
    spdlog::info("x");
    spdlog::warn("x");
    spdlog::error("x");
  };
  const char* levels[] = {"error", "warn", "info", "debug", "trace"};
  for (size_t i = 0; i < 5; ++i) CHECK(Lines({.level = levels[i], .format = "text"}, log).size() == i + 1);
}

}  // namespace
}  // namespace kvist::daemon
