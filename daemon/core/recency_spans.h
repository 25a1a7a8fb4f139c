#ifndef KVIST_DAEMON_CORE_RECENCY_SPANS_H_
#define KVIST_DAEMON_CORE_RECENCY_SPANS_H_

#include <array>
#include <cstdint>

namespace kvist::core {

// Divides the past into spans, short ones for what was lately and long ones for what was long ago, so that a few tell ages apart to
// about a fifth. Time is counted by its user; it says when an epoch, the shortest span, ends.
//
//   4 or 5 spans of 1 epoch, as many of 2, of 4, .. of 2^(kLevels - 1); the oldest is all that was before
//
// When there are 6 of one length the two oldest of them become one of twice that length.
// Threads: one.
class RecencySpans {
 public:
  static constexpr uint32_t kPlaces = 32;  // a span keeps its place until it is merged into the one before it
  using Epoch = uint16_t;                  // wraps: what is older than kEpochs counts as of the oldest span
  static constexpr uint32_t kEpochs = 128;

  // The first span begins at time 0, at place 0.
  RecencySpans() { places_[0] = 0; }

  Epoch now() const { return now_; }
  uint32_t newest() const { return places_[spans_ - 1]; }
  // The place of the span that holds an epoch.
  uint32_t Of(Epoch epoch) const {
    const auto ago = static_cast<Epoch>(now_ - epoch);
    return ago < kEpochs ? of_epoch_[epoch % kEpochs] : places_[0];
  }

  uint32_t size() const { return spans_; }
  // The place of the nth span, 0 is the oldest, and the time in its middle, if it is `time` now.
  uint32_t place(uint32_t nth) const { return places_[nth]; }
  uint64_t middle(uint32_t nth, uint64_t time) const {
    const uint64_t end = nth + 1 < spans_ ? begins_[nth + 1] : time;
    return begins_[nth] + (end - begins_[nth]) / 2;
  }
  uint64_t begin_of_newest() const { return begins_[spans_ - 1]; }

  // The newest epoch ends at `time`, and another begins. merge(into, from): what was of the span at place `from` is of the one at
  // `into`, the span before it; `from` is free then.
  template <class F>
  void NextEpoch(uint64_t time, F merge) {
    uint32_t level = 0;
    for (uint32_t end = spans_; level < kLevels; ++level) {
      uint32_t begin = end;
      while (begin > 0 && levels_[begin - 1] == level) --begin;
      if (end - begin <= kPerLevel) break;
      merge(places_[begin], places_[begin + 1]);
      Join(begin);
      if (level + 1 < kLevels) ++levels_[begin];
      end = begin + 1;
    }
    ++now_;
    begins_[spans_] = time;
    levels_[spans_] = 0;
    places_[spans_] = Free();
    of_epoch_[now_ % kEpochs] = static_cast<uint8_t>(places_[spans_]);
    ++spans_;
  }

 private:
  static constexpr uint32_t kLevels = 5;
  static constexpr uint32_t kPerLevel = 4;
  static_assert(kLevels * (kPerLevel + 1) < kPlaces, "a new span finds a place");
  static_assert(kPerLevel * ((1u << kLevels) - 1) <= kEpochs, "each epoch that isn't of the oldest span is known");

  void Join(uint32_t nth) {  // with the next
    for (uint8_t& place : of_epoch_) {
      if (place == places_[nth + 1]) place = places_[nth];
    }
    --spans_;
    for (uint32_t i = nth + 1; i < spans_; ++i) {
      begins_[i] = begins_[i + 1];
      places_[i] = places_[i + 1];
      levels_[i] = levels_[i + 1];
    }
  }
  uint8_t Free() const {
    uint32_t used = 0;
    for (uint32_t i = 0; i < spans_; ++i) used |= 1u << places_[i];
    return static_cast<uint8_t>(__builtin_ctz(~used));
  }

  // [nth], from the oldest to the newest.
  std::array<uint64_t, kPlaces> begins_{};
  std::array<uint8_t, kPlaces> places_{};
  std::array<uint8_t, kPlaces> levels_{};
  uint32_t spans_ = 1;
  Epoch now_ = 0;
  std::array<uint8_t, kEpochs> of_epoch_{};  // [epoch % kEpochs]
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_RECENCY_SPANS_H_
