#ifndef KVIST_DAEMON_CTL_COMPLETION_H_
#define KVIST_DAEMON_CTL_COMPLETION_H_

#include <string>

#include "absl/strings/string_view.h"

namespace CLI {
class App;
}

namespace kvist::ctl {

// What a shell needs to complete a program's command line, and the program's manual page, both made of the same tree of commands and
// options that parses it: so none of them can lack one.

// `shell`: bash, zsh or fish. A script to be sourced (bash, fish) or to be put on zsh's fpath.
std::string Completion(const CLI::App& app, absl::string_view shell);

// A page in roff, for man(1). `section`: 1 for commands, 8 for daemons. The app's footer becomes its last sections: a line
// "exit status: 0 done; 1 ..." the one of that name.
std::string ManPage(const CLI::App& app, int section);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_COMPLETION_H_
