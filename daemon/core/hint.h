#ifndef KVIST_DAEMON_CORE_HINT_H_
#define KVIST_DAEMON_CORE_HINT_H_

#include <cstdint>

namespace kvist::core {

// When an engine expects to need a chunk again.
enum class ExpectedReuse : uint8_t { kUnknown = 0, kSoon = 1, kLater = 2, kNever = 3 };

// Why the answer whose tokens these are ended. LHD learns what each is worth.
enum class StopReason : uint8_t { kUnknown = 0, kStop = 1, kLength = 2, kAborted = 3, kToolCall = 4 };
inline constexpr uint8_t kStopReasonMax = 4;  // 3 bits of a Chunk

// What an engine knows of chunks that the daemon can't see. It never changes what is right, only what goes first.
struct Hint {
  bool session_ended = false;
  ExpectedReuse expected_reuse = ExpectedReuse::kUnknown;
  StopReason stop_reason = StopReason::kUnknown;

  bool operator==(const Hint&) const = default;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_HINT_H_
