#include "daemon/corruption_log.h"

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <catch2/catch.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace kvist::daemon {
namespace {

class Said {
 public:
  Said() : before_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_));
    logger->set_pattern("%v");
    spdlog::set_default_logger(logger);
  }
  ~Said() { spdlog::set_default_logger(before_); }
  // The lines since the last time.
  std::vector<std::string> Take() {
    std::vector<std::string> lines;
    std::istringstream in(text_.str());
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    text_.str("");
    return lines;
  }

 private:
  std::ostringstream text_;
  const std::shared_ptr<spdlog::logger> before_;
};

TEST_CASE("CorruptionLog says at once what is news, and then a tenth of it") {
  Said said;
  CorruptionLog log;
  absl::Time now = absl::UnixEpoch();
  const auto find = [&](core::Tier tier, uint32_t chunks) { log.Found({{}, chunks, tier}, SpaceDigest{}, now); };
  find(core::Tier::kRemote, 1);
  auto lines = said.Take();
  REQUIRE(lines.size() == 1);
  CHECK(
      lines[0] ==
      "a chunk in the remote store was not what was stored there and will not be served again: space 0000000000000000; the "
      "store, or who else writes to it, may be failing (`kvistctl status -o json` says what was found)");
  for (int i = 0; i < 2000; ++i) find(core::Tier::kRemote, 1);
  lines = said.Take();
  REQUIRE(lines.size() == 3);  // 10, 100, 1000 more
  CHECK(lines[2].find("1000 chunks in the remote store were not what was stored there") == 0);
  find(core::Tier::kSsd, 3);  // another tier's is news
  REQUIRE(said.Take().size() == 1);
  now += CorruptionLog::kQuiet;
  find(core::Tier::kRemote, 1);
  lines = said.Take();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("891 chunks") == 0);  // and those that weren't said
}

}  // namespace
}  // namespace kvist::daemon
