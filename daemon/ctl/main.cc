// kvistctl: the command line of one kvistd.
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

}  // namespace

int main(int argc, char** argv) {
  const kvist::ctl::Terminal terminal{.out = std::cout, .err = std::cerr, .ask = AskOnTerminal};
  const kvist::ctl::ExitCode code = kvist::ctl::Run(std::vector<std::string>(argv + 1, argv + argc), terminal);
  std::cout.flush();
  return std::cout.good() || code != kvist::ctl::kOk ? code : kvist::ctl::kRefused;  // a full disk behind `>` is an error
}
