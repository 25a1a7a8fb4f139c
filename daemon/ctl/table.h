#ifndef KVIST_DAEMON_CTL_TABLE_H_
#define KVIST_DAEMON_CTL_TABLE_H_

#include <cstdint>
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
    int drop = 0;          // when there is no room: the column with the highest goes first; 0 stays
    size_t width_min = 0;  // places, so that a table that is drawn again and again stands still
    bool if_any = false;   // left out when all its cells are empty
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns. Control characters are shown as '?': a cell can hold what a client called itself, and must not
  // steer the terminal.
  void Add(std::vector<std::string> cells);

  // The title line and a line for each row, each ended by a newline; none ends with blanks, none is wider than `width_max`: text is
  // cut for that, the longest first, then columns are dropped, what is left over goes back to the text, and in the end the line is cut.
  std::string Render(size_t width_max = SIZE_MAX) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

inline constexpr Table::Align kRight = Table::Align::kRight;  // of numbers, in tables of many columns

// Places that `text` takes on the screen.
size_t Width(const std::string& text);
// The beginning of `text`, at most `width` places, with an ellipsis in the last when something is cut off.
std::string Cut(const std::string& text, size_t width);

// `text` without control characters, as in a Table's cell.
std::string Printable(absl::string_view text);
// The same of several lines.
std::string PrintableLines(absl::string_view text);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_TABLE_H_
