#ifndef KVIST_DAEMON_CTL_WRAP_H_
#define KVIST_DAEMON_CTL_WRAP_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace kvist::ctl {

// `line` (ASCII) broken between words so that no line is longer than `columns`; those behind the first begin with `indent` blanks. Blanks
// before `keep` are no places to break at. Words that are too long stay. No newline at the end.
std::string Wrap(absl::string_view line, size_t columns, size_t indent, size_t keep = 0);

// Where descriptions of options begin: CLI11's column_width.
inline constexpr size_t kHelpColumn = 24;
// What CLI11 says of a program's options, which it doesn't wrap, no wider than `columns`: lines go on below their description.
std::string WrapHelp(absl::string_view help, size_t columns);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_WRAP_H_
