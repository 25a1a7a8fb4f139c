// kvistctl: the command line of one kvistd.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "daemon/ctl/commands.h"

namespace {

std::optional<std::string> AskOnTerminal(const std::string& question) {
  if (isatty(STDIN_FILENO) == 0) return std::nullopt;
  std::cerr << question << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer;
}

std::optional<kvist::ctl::Terminal::Size> TerminalSize() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return std::nullopt;
  if (size.ws_col == 0 || size.ws_row == 0) return kvist::ctl::Terminal::Size();
  return kvist::ctl::Terminal::Size{size.ws_col, size.ws_row};
}

int stop_pipe[2] = {-1, -1};

// From the first call on, ^C ends waits and not the process, so that whoever waits can leave the terminal in order.
bool WaitForUser(absl::Duration duration) {
  if (stop_pipe[0] < 0) {
    if (pipe2(stop_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    struct sigaction stop {};
    stop.sa_handler = [](int) {
      const char byte = 0;
      [[maybe_unused]] const ssize_t written = write(stop_pipe[1], &byte, 1);
    };
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &stop, nullptr);
  }
  pollfd stopped{stop_pipe[0], POLLIN, 0};
  return poll(&stopped, 1, static_cast<int>(absl::ToInt64Milliseconds(duration))) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const kvist::ctl::Terminal terminal{
      .out = std::cout, .err = std::cerr, .ask = AskOnTerminal, .size = TerminalSize, .wait = WaitForUser};
  const kvist::ctl::ExitCode code = kvist::ctl::Run(std::vector<std::string>(argv + 1, argv + argc), terminal);
  std::cout.flush();
  return std::cout.good() || code != kvist::ctl::kOk ? code : kvist::ctl::kRefused;  // a full disk behind `>` is an error
}
