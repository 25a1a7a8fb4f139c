#ifndef KVIST_STORAGE_REMOTE_BREAKER_H_
#define KVIST_STORAGE_REMOTE_BREAKER_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace kvist::remote {

// Says when a store isn't to be asked: one that doesn't answer costs its callers a deadline each time.
//
//   closed --`failures` in a row--> open --after a pause--> half open: one probe --answers--> closed
//                                    ^------------------------------ fails, and the pause doubles
//
// Pure: no clock, no thread, no I/O; the time is passed in. An answer to what was asked before the last change of state says nothing
// of now, and changes nothing. Threads: one at a time.
class Breaker {
 public:
  struct Options {
    uint32_t failures = 5;                         // in a row. Smaller: sooner left alone, and sooner by mistake
    absl::Duration pause_min = absl::Seconds(1);   // before the first probe
    absl::Duration pause_max = absl::Seconds(30);  // doubling ends there
  };
  enum class State : uint8_t { kClosed, kOpen, kHalfOpen };
  // Who has been allowed says what came of it, with this.
  struct Ticket {
    uint64_t change = 0;
  };

  explicit Breaker(Options options) : options_(options), pause_(options.pause_min) {}

  // Nothing: don't ask now. In half open only the first, the probe, gets a ticket.
  std::optional<Ticket> Allow(absl::Time now);
  void Succeeded(Ticket ticket);
  void Failed(Ticket ticket, absl::Time now);
  // It was never asked, or its answer says nothing of the store: a probe's place is free again.
  void Unused(Ticket ticket);

  State state() const { return state_; }
  uint64_t opened() const { return opened_; }  // so often
  // When the next probe may go; only while it is open.
  absl::Time probe_at() const { return probe_at_; }

 private:
  void Become(State state);
  void Open(absl::Time now);

  const Options options_;
  State state_ = State::kClosed;
  uint64_t change_ = 0;  // of state; a ticket of another one is old
  uint32_t failures_ = 0;
  bool probing_ = false;
  uint64_t opened_ = 0;
  absl::Duration pause_;
  absl::Time probe_at_ = absl::InfinitePast();
};

// In small letters, as metrics have it: "half_open".
const char* NameOf(Breaker::State state);

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_BREAKER_H_
