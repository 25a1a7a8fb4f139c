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

// A hint as a catalog keeps it (hints of ssd::ChunkRow): bit 0 session_ended, bits 1 and 2 expected_reuse, bits 3 to 5 stop_reason. Other bits are a
// later version's, and a stop reason that isn't known here is none.
constexpr uint16_t Pack(const Hint& hint) {
  return static_cast<uint16_t>((hint.session_ended ? 1U : 0U) | static_cast<unsigned>(hint.expected_reuse) << 1 |
                               static_cast<unsigned>(hint.stop_reason) << 3);
}
constexpr Hint UnpackHint(uint16_t bits) {
  const auto reason = static_cast<uint8_t>(bits >> 3 & 7);
  return {(bits & 1) != 0, static_cast<ExpectedReuse>(bits >> 1 & 3),
          reason <= kStopReasonMax ? static_cast<StopReason>(reason) : StopReason::kUnknown};
}

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_HINT_H_
