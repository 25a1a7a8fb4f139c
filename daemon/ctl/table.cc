#include "daemon/ctl/table.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "storage/base/check.h"
#include "storage/base/utf8.h"

namespace kvist::ctl {
namespace {

constexpr size_t kTextMin = 12;  // places; text isn't cut further to make room

}  // namespace

// Takes each code point for one place: not right for wide scripts, and good enough for names of models.
size_t Width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string Cut(const std::string& text, size_t width) {
  if (Width(text) <= width) return text;
  if (width == 0) return "";
  size_t end = 0;
  for (size_t places = 0; end < text.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
    if (begins && ++places == width) break;
  }
  return text.substr(0, end) + "\u2026";
}

std::string Printable(absl::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size();) {
    const size_t control = ControlAt(text, i);
    shown += control > 0 ? '?' : text[i];
    i += std::max<size_t>(control, 1);
  }
  return shown;
}

std::string PrintableLines(absl::string_view text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (std::string& line : lines) line = Printable(line);
  return absl::StrJoin(lines, "\n");
}

void Table::Add(std::vector<std::string> cells) {
  KVIST_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Render(size_t width_max) const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(std::max(Width(columns_[i].title), columns_[i].width_min));
    for (const auto& row : rows_) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::vector<bool> dropped;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const bool any = std::any_of(rows_.begin(), rows_.end(), [i](const auto& row) { return !row[i].empty(); });
    dropped.push_back(columns_[i].if_any && !any);
  }
  const std::vector<size_t> wanted = widths;
  const auto width = [&] {
    size_t sum = 0;
    for (size_t i = 0; i < columns_.size(); ++i) sum += dropped[i] ? 0 : widths[i] + (sum == 0 ? 0 : 2);
    return sum;
  };
  // One step at a time: the longest text by a place, else a column.
  while (width() > width_max) {
    size_t longest = columns_.size(), least = columns_.size();
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (dropped[i]) continue;
      const bool can_shrink = columns_[i].align == Align::kLeft && widths[i] > std::max(kTextMin, Width(columns_[i].title));
      if (can_shrink && (longest == columns_.size() || widths[i] > widths[longest])) longest = i;
      const int before = least == columns_.size() ? 0 : columns_[least].drop;
      if (columns_[i].drop > before) least = i;
    }
    if (longest < columns_.size()) {
      --widths[longest];
    } else if (least < columns_.size()) {
      dropped[least] = true;
    } else {
      break;
    }
  }
  // A dropped column may have left more room than was missing: the text that is shortest yet gets it back, a place at a time.
  for (size_t room = width() < width_max ? width_max - width() : 0; room > 0 && width_max != SIZE_MAX; --room) {
    size_t shortest = columns_.size();
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (!dropped[i] && widths[i] < wanted[i] && (shortest == columns_.size() || widths[i] < widths[shortest]))
        shortest = i;
    }
    if (shortest == columns_.size()) break;
    ++widths[shortest];
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (dropped[i]) continue;
      const std::string cell = Cut(cell_of(i), widths[i]);
      const std::string blanks(widths[i] - Width(cell), ' ');
      absl::StrAppend(&line, line.empty() ? "" : "  ", columns_[i].align == Align::kRight ? blanks + cell : cell + blanks);
    }
    line = Cut(line, width_max);
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  };
  add_line([&](size_t i) { return columns_[i].title; });
  for (const auto& row : rows_) add_line([&](size_t i) { return row[i]; });
  return text;
}

}  // namespace kvist::ctl
