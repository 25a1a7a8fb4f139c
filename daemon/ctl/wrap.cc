#include "daemon/ctl/wrap.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace kvist::ctl {
namespace {

constexpr size_t kNarrowest = 40;  // columns; below, indented text would be a word a line

}  // namespace

std::string Wrap(absl::string_view line, size_t columns, size_t indent, size_t keep) {
  columns = std::max(columns, kNarrowest);
  std::string text;
  size_t before = 0;  // blanks that this line begins with
  while (before + line.size() > columns) {
    const size_t room = columns - before;
    size_t blank = line.substr(0, room + 1).rfind(' ');
    if (blank == absl::string_view::npos || blank < keep) blank = line.find(' ', std::max(keep, room));
    if (blank == absl::string_view::npos) break;
    absl::StrAppend(&text, line.substr(0, blank), "\n", std::string(indent, ' '));
    line.remove_prefix(blank + 1);
    before = indent;
    keep = 0;
  }
  return absl::StrCat(text, line);
}

std::string WrapHelp(absl::string_view help, size_t columns) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(help, '\n')) {
    const bool described = line.size() > kHelpColumn && line[kHelpColumn] != ' ' && line[kHelpColumn - 1] == ' ';
    const size_t indent = described && line[0] == ' ' ? kHelpColumn : std::min(line.find_first_not_of(' '), line.size());
    lines.push_back(Wrap(line, columns, indent, indent));
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace kvist::ctl
