#include "daemon/controller/tellings.h"

#include "storage/base/check.h"

namespace kvist::controller {

Tellings::Tellings() : tellings_(kTellingsMax) {
  free_.reserve(kTellingsMax);
  for (uint32_t telling = kTellingsMax; telling > 0; --telling) free_.push_back(static_cast<TellingId>(telling - 1));
}

std::optional<TellingId> Tellings::Take(NodeId node) {
  const WriterLock lock(&mutex_);
  if (free_.empty()) return std::nullopt;
  const TellingId telling = free_.back();
  free_.pop_back();
  tellings_[telling] = {State::kFilling, node, ++time_, 0};
  return telling;
}

void Tellings::Show(TellingId telling, State state, std::optional<TellingId> instead) {
  const WriterLock lock(&mutex_);
  KVIST_CHECK(state == State::kLive || state == State::kStale);
  tellings_[telling].state = state;
  if (!instead.has_value()) return;
  tellings_[*instead].state = State::kVoid;
  tellings_[*instead].swept = swept_;
  void_.push_back(*instead);
}

void Tellings::Void(TellingId telling) {
  const WriterLock lock(&mutex_);
  KVIST_CHECK(tellings_[telling].state != State::kVoid && tellings_[telling].state != State::kFree);
  tellings_[telling].state = State::kVoid;
  tellings_[telling].swept = swept_;
  void_.push_back(telling);
}

uint64_t Tellings::Time() const {
  const ReaderLock lock(&mutex_);
  return time_;
}

void Tellings::See(uint64_t time, const std::vector<TellingId>& tellings, std::vector<std::optional<Seen>>* seen) const {
  seen->clear();
  const ReaderLock lock(&mutex_);
  for (const TellingId id : tellings) {
    const Telling& telling = tellings_[id];
    const bool shown = (telling.state == State::kLive || telling.state == State::kStale) && telling.taken <= time;
    seen->push_back(shown ? std::optional(Seen{telling.node, telling.state == State::kStale}) : std::nullopt);
  }
}

TellingSet Tellings::Dead() const {
  const ReaderLock lock(&mutex_);
  TellingSet dead;
  for (const TellingId telling : void_) dead.set(telling);
  return dead;
}

bool Tellings::AnyDead() const {
  const ReaderLock lock(&mutex_);
  return !void_.empty();
}

void Tellings::Swept(uint32_t of) {
  const uint64_t swept = swept_.fetch_add(1, std::memory_order_relaxed) + 1;
  {
    const ReaderLock lock(&mutex_);  // most often nothing is done
    if (void_.empty() || swept - tellings_[void_.front()].swept <= of) return;
  }
  const WriterLock lock(&mutex_);
  // In the order in which they became void, so those that are done come first.
  auto end = void_.begin();
  for (; end != void_.end() && swept - tellings_[*end].swept > of; ++end) {
    tellings_[*end].state = State::kFree;
    free_.push_back(*end);
  }
  void_.erase(void_.begin(), end);
}

}  // namespace kvist::controller
