#include "daemon/controller/tellings.h"

#include "storage/base/check.h"

namespace kvist::controller {

Tellings::Tellings(Readers* readers) : readers_(*readers), tellings_(kTellingsMax) {
  free_.reserve(kTellingsMax);
  for (uint32_t telling = kTellingsMax; telling > 0; --telling) free_.push_back(static_cast<TellingId>(telling - 1));
}

std::optional<TellingId> Tellings::Take(NodeId node) {
  const WriterLock lock(&mutex_);
  if (free_.empty()) return std::nullopt;
  const TellingId telling = free_.back();
  free_.pop_back();
  tellings_[telling] = {State::kFilling, node};
  return telling;
}

void Tellings::Show(TellingId id, State state, std::optional<TellingId> instead) {
  const WriterLock lock(&mutex_);
  KVIST_CHECK(state == State::kLive || state == State::kStale);
  Telling& telling = tellings_[id];
  if (telling.state == State::kFilling) telling.shown = ++time_;
  telling.state = state;
  telling.stale = state == State::kStale;
  if (instead.has_value()) MakeVoid(*instead);
}

void Tellings::Void(TellingId telling) {
  const WriterLock lock(&mutex_);
  ++time_;
  MakeVoid(telling);
}

void Tellings::MakeVoid(TellingId id) {
  Telling& telling = tellings_[id];
  KVIST_CHECK(telling.state != State::kVoid && telling.state != State::kFree);
  telling.state = State::kVoid;
  telling.voided = time_;
  void_.push_back({id, readers_.Mark()});
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
    const bool shown =
        telling.shown != 0 && telling.shown <= time && (telling.state != State::kVoid || telling.voided > time);
    seen->push_back(shown ? std::optional(Seen{telling.node, telling.stale}) : std::nullopt);
  }
}

TellingSet Tellings::ToSweep() {
  TellingSet dead;
  const uint64_t oldest = readers_.Oldest();
  const WriterLock lock(&mutex_);
  for (VoidOne& one : void_) {
    if (!one.swept_from.has_value()) {
      if (one.mark >= oldest) break;
      one.swept_from = swept_;
    }
    dead.set(one.telling);
  }
  return dead;
}

void Tellings::Swept(uint32_t of) {
  ++swept_;
  const WriterLock lock(&mutex_);
  while (!void_.empty() && void_.front().swept_from.has_value() && swept_ - *void_.front().swept_from >= of) {
    tellings_[void_.front().telling] = {};
    free_.push_back(void_.front().telling);
    void_.pop_front();
  }
}

bool Tellings::AnyVoid() const {
  const ReaderLock lock(&mutex_);
  return !void_.empty();
}

}  // namespace kvist::controller
