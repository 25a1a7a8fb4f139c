#ifndef KVIST_TESTS_BENCH_SETTINGS_H_
#define KVIST_TESTS_BENCH_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace kvist::bench {

// How much a subcommand may do.
struct Settings {
  // For measuring, without the set-up. More: more pairs, so less noise in their median.
  absl::Duration time = absl::Seconds(20);
  // Everything as small as it can be: whether the benchmark works at all, not what it measures.
  bool quick = false;
  // Where the disk is measured; empty: in the system's directory for temporary files.
  std::string directory;
  // `copy` alone: cpu, or cuda for an engine on this machine's first GPU.
  std::string device = "cpu";
  // `copy --device cuda` alone: settings of the kvistd that is measured, "section.key=value".
  std::vector<std::string> kvistd = {};
  // `codec` alone: a file of raw bf16 values, [layer][K or V][token][head][head_dim], beside the made ones; and how many of each it has.
  struct Kv {
    std::string path = {};
    uint32_t layers = 0;
    uint32_t tokens = 0;
    uint32_t heads = 0;
    uint32_t head_dim = 128;
  } kv = {};
  // `policy` alone. A file to replay instead of conversation_dev; and whether to replay all traces of shared/traces.
  std::string trace = {};
  bool all = false;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_SETTINGS_H_
