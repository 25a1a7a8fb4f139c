#include "daemon/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "storage/base/log_subject.h"
#include "storage/base/utf8.h"

namespace kvist::daemon {
namespace {

std::string TimeOf(const spdlog::details::log_msg& message) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(message.time), absl::UTCTimeZone());
}

std::string LevelOf(const spdlog::details::log_msg& message) {
  switch (message.level) {
    case spdlog::level::trace: return "trace";
    case spdlog::level::debug: return "debug";
    case spdlog::level::info: return "info";
    case spdlog::level::warn: return "warn";
    default: return "error";
  }
}

std::string WithoutControls(spdlog::string_view_t text) {
  std::string line;
  const absl::string_view all(text.data(), text.size());
  for (size_t i = 0; i < all.size();) {
    const size_t control = ControlAt(all, i);
    if (control == 0) line += all[i];
    if (all[i] == '\n') {
      line += "\\n";
    } else {
      for (size_t k = 0; k < control; ++k) line += absl::StrFormat("\\x%02x", static_cast<unsigned char>(all[i + k]));
    }
    i += std::max<size_t>(control, 1);
  }
  return line;
}

class TextLines : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string line =
        absl::StrFormat("%s %-5s %s\n", TimeOf(message), LevelOf(message), WithoutControls(message.payload));
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<TextLines>(); }
};

class JsonLines : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    nlohmann::ordered_json record = {{"time", TimeOf(message)},
                                     {"level", LevelOf(message)},
                                     {"message", std::string(message.payload.data(), message.payload.size())}};
    // The sink formats a line on the thread that logs it.
    if (const LogSubject::Fields* about = LogSubject::Now(); about != nullptr) {
      if (about->session != 0) record["session"] = about->session;
      if (!about->tenant.empty()) record["tenant"] = about->tenant;
      if (!about->space.empty()) record["space"] = about->space;
      if (about->job != 0) record["job"] = about->job;
      if (about->pin != 0) record["pin"] = about->pin;
    }
    // What isn't UTF-8 is replaced: a name that a client sent must not cost the line.
    const std::string line = record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonLines>(); }
};

// The sink takes a formatter under its lock, and the level is an atomic.
void Apply(const Options::Log& log, spdlog::logger* logger) {
  if (log.format == "json") {
    logger->set_formatter(std::make_unique<JsonLines>());
  } else {
    logger->set_formatter(std::make_unique<TextLines>());
  }
  logger->set_level(log.level == "error" ? spdlog::level::err : spdlog::level::from_str(log.level));
}

}  // namespace

void SetUpLogging(const Options::Log& log) {
  auto logger = std::make_shared<spdlog::logger>("kvistd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  Apply(log, logger.get());
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

void LogLine(bool warning, const std::string& text) {
  spdlog::log(warning ? spdlog::level::warn : spdlog::level::info, "{}", text);
}

void ChangeLogging(const Options::Log& log) { Apply(log, spdlog::default_logger_raw()); }

}  // namespace kvist::daemon
