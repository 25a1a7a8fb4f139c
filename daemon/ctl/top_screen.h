#ifndef KVIST_DAEMON_CTL_TOP_SCREEN_H_
#define KVIST_DAEMON_CTL_TOP_SCREEN_H_

#include <cstdint>
#include <string>

#include "daemon/ctl/top_view.h"

namespace kvist::ctl {

struct TopScreenOptions {
  size_t columns = 100;
  size_t rows = SIZE_MAX;  // lines; tables are cut, and say by how much
  bool colours = false;    // ANSI
  bool live = false;       // goes on until ^C
  std::string trouble{};   // why there is nothing newer than the view; "" when there is
};

// A view as lines for a terminal, each ended by a newline, none wider than `columns`.
std::string DrawTop(const TopView& view, const TopScreenOptions& options);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_TOP_SCREEN_H_
