#include "daemon/ctl/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace kvist::ctl {
namespace {

// Places on the screen, taking each code point for one: not right for wide scripts, and good enough for names of models.
size_t Width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters, too: two bytes, the first of which is 0xc2.
    const bool c1 = byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    shown += byte < 0x20 || byte == 0x7f || c1 ? '?' : text[i];
    if (c1) ++i;
  }
  return shown;
}

void Table::Add(std::vector<std::string> cells) {
  KVIST_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::vector<std::string> titles;
  std::vector<size_t> widths;
  for (const Column& column : columns_) titles.push_back(column.title);
  for (size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(Width(titles[i]));
    for (const auto& row : rows_) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string blanks(widths[i] - Width(cells[i]), ' ');
      absl::StrAppend(&line, i == 0 ? "" : "  ", columns_[i].align == Align::kRight ? blanks + cells[i] : cells[i] + blanks);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  };
  add_line(titles);
  for (const auto& row : rows_) add_line(row);
  return text;
}

}  // namespace kvist::ctl
