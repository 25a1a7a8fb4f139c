#ifndef KVIST_DAEMON_LOGGING_H_
#define KVIST_DAEMON_LOGGING_H_

#include <string>

#include "daemon/options.h"

namespace kvist::daemon {

// Makes spdlog's default logger write to stderr as [log] says; everything in the daemon logs through spdlog::info() and its like.
//
//   text   2026-03-14T09:26:53.589Z info  serving engines on /run/kvist/engine.sock
//   json   {"time":"2026-03-14T09:26:53.589Z","level":"info","message":"serving engines on /run/kvist/engine.sock"}
//          and behind them session, tenant, space, job and pin, where the line is about one (storage/base/log_subject.h)
//
// One line is one record, whatever a client put into it: control characters are escaped. What must not be logged: tokens, chunk
// keys, KV bytes, the contents of frames. Spaces stand with the first 16 digits of their digest.
//
// `log` must be valid. Call it before other threads start; those may log from then on.
void SetUpLogging(const Options::Log& log);

// A line at warn or info. Threads: any.
void LogLine(bool warning, const std::string& text);

// Changes level and format of the logger that SetUpLogging has set up, while threads log.
void ChangeLogging(const Options::Log& log);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_LOGGING_H_
