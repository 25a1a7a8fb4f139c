#include "storage/remote/breaker.h"

#include <algorithm>

namespace kvist::remote {

std::optional<Breaker::Ticket> Breaker::Allow(absl::Time now) {
  if (state_ == State::kOpen && now >= probe_at_) Become(State::kHalfOpen);
  if (state_ == State::kOpen || (state_ == State::kHalfOpen && probing_)) return std::nullopt;
  probing_ = state_ == State::kHalfOpen;
  return Ticket{change_};
}

void Breaker::Succeeded(Ticket ticket) {
  if (ticket.change != change_) return;
  failures_ = 0;
  if (state_ != State::kHalfOpen) return;
  pause_ = options_.pause_min;
  Become(State::kClosed);
}

void Breaker::Failed(Ticket ticket, absl::Time now) {
  if (ticket.change != change_) return;
  if (state_ == State::kHalfOpen) {
    pause_ = std::min(pause_ * 2, options_.pause_max);
    Open(now);
  } else if (++failures_ >= options_.failures) {
    Open(now);
  }
}

void Breaker::Unused(Ticket ticket) {
  if (ticket.change == change_) probing_ = false;
}

void Breaker::Become(State state) {
  state_ = state;
  ++change_;
  failures_ = 0;
  probing_ = false;
}

void Breaker::Open(absl::Time now) {
  Become(State::kOpen);
  ++opened_;
  probe_at_ = now + pause_;
}

const char* NameOf(Breaker::State state) {
  switch (state) {
    case Breaker::State::kClosed: return "closed";
    case Breaker::State::kOpen: return "open";
    case Breaker::State::kHalfOpen: return "half_open";
  }
  return "unknown";
}

}  // namespace kvist::remote
