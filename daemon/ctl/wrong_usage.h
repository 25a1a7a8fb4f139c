#ifndef KVIST_DAEMON_CTL_WRONG_USAGE_H_
#define KVIST_DAEMON_CTL_WRONG_USAGE_H_

#include <CLI/CLI.hpp>
#include <string>

namespace kvist::ctl {

// For CLI::App::failure_message of a program with commands: where one is missing or misspelt, the word that is in its place, the one that was
// meant, and all there are; of an option that isn't there its name; else what CLI11 says.
std::string WrongUsage(const CLI::App* app, const CLI::Error& error);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_WRONG_USAGE_H_
