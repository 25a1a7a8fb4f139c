#ifndef KVIST_DAEMON_CTL_TABLE_H_
#define KVIST_DAEMON_CTL_TABLE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvist::ctl {

// Columns that line up: text to the left, numbers to the right.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns. Control characters are shown as '?': a cell can hold what a client called itself, and must not
  // steer the terminal.
  void Add(std::vector<std::string> cells);

  // The title line and a line for each row, each ended by a newline; none ends with blanks.
  std::string Render() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `text` without control characters, as in a Table's cell.
std::string Printable(absl::string_view text);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_TABLE_H_
