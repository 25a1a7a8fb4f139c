#ifndef KVIST_EXAMPLES_REPLAY_TRACE_H_
#define KVIST_EXAMPLES_REPLAY_TRACE_H_

#include <kvist/kvist.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvist::replay {

// Tokens of a trace's block, which is a chunk here.
inline constexpr uint32_t kBlockTokens = 512;

// Of a request: more than the milliseconds since 1970, and few enough that nanoseconds of them fit into 64 bits.
inline constexpr double kTimestampMaxMs = 4e12;

// One request of a trace: its prompt as a path in the tree of prefixes.
struct Request {
  double timestamp_ms = 0;
  std::vector<uint64_t> hash_ids;  // one per block of the prompt; equal ids mean equal tokens and an equal prefix
  kvist_stop_reason stop =
      KVIST_STOP_UNKNOWN;  // why the answer before it ended, of traces that say so: "end_turn", "tool_use" or "max_tokens"
  uint64_t tokens = 0;     // of the prompt
  uint64_t answer_tokens = 0;  // where the trace tells
  uint64_t full_blocks = 0;    // the leading ids whose blocks have all their tokens; only these have KV that can be stored
};

struct Trace {
  std::vector<Request> requests;
  uint64_t blocks = 0;  // all listed ids
  uint64_t full_blocks = 0;
  uint64_t unique_full_blocks = 0;
  uint64_t full_blocks_max = 0;  // of one request
};

// Reads the first `limit` requests of `path`: JSON objects, one a line, plain or in gzip, with the members `timestamp` (ms),
// `input_length` (tokens) and `hash_ids`, and perhaps `output_length` (tokens) and `stop` (text); others are ignored.
//
// Errors: NotFound         there is no such file, or it can't be read.
//         InvalidArgument  it is damaged, a line isn't such an object, is longer than 64 MiB or has a NUL byte, or there is no request; names
//                          file and line.
absl::StatusOr<Trace> ReadTrace(const std::string& path, uint64_t limit);

}  // namespace kvist::replay

#endif  // KVIST_EXAMPLES_REPLAY_TRACE_H_
