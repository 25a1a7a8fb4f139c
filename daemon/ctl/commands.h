#ifndef KVIST_DAEMON_CTL_COMMANDS_H_
#define KVIST_DAEMON_CTL_COMMANDS_H_

#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace kvist::ctl {

// Exit codes of kvistctl, also in its --help.
enum ExitCode : int {
  kOk = 0,       // done; of a question to several nodes: one has answered
  kRefused = 1,  // the daemon, or one node of several, hasn't done it; doctor or fsck found what fails; a job was cancelled
  kUsage = 2,    // the command line is wrong, or a clear was not confirmed
  kUnavailable = 3,  // no daemon, no right to reach it, no answer in time; a job goes on; a tier that fsck can't have
};

// What a command sees of the world; main() gives the process's own, tests give strings.
struct Terminal {
  std::ostream& out;
  std::ostream& err;
  // Asks a question on the terminal; the line that was typed, or nothing when there is no terminal to ask on.
  std::function<std::optional<std::string>(const std::string& question)> ask;
  // The terminal that `out` is; nothing when it is none.
  struct Size {
    size_t columns = 80;
    size_t rows = 24;
  };
  std::function<std::optional<Size>()> size = nullptr;
  // Waits; false when the user has had enough (^C) and the command is to end.
  std::function<bool(absl::Duration)> wait = nullptr;
};

// Runs kvistctl with these arguments (without its own name).
ExitCode Run(const std::vector<std::string>& arguments, const Terminal& terminal);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_COMMANDS_H_
