#ifndef KVIST_EXAMPLES_REPLAY_REPORT_H_
#define KVIST_EXAMPLES_REPLAY_REPORT_H_

#include <cstdint>
#include <string>

#include "examples/replay/replay.h"
#include "examples/replay/trace.h"

namespace kvist::replay {

// What was replayed, for the table.
struct Setting {
  std::string trace_path;
  uint64_t unique_full_blocks = 0;
  uint64_t block_bytes = 0;
  std::string daemon;  // "a private kvistd with 10,514 slots", or whose socket
  double seconds = 0;  // the replay alone
};

// For people: one line for each thing and a table of the hooks.
std::string Table(const Setting& setting, const Outcome& outcome);

// For programs: one object on one line; times in us, rates in 10^9 bytes a second of the hook's own time.
std::string Json(const Outcome& outcome);

// 1234567 -> "1,234,567".
std::string Grouped(uint64_t number);

}  // namespace kvist::replay

#endif  // KVIST_EXAMPLES_REPLAY_REPORT_H_
