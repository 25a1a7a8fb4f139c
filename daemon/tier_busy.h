#ifndef KVIST_DAEMON_TIER_BUSY_H_
#define KVIST_DAEMON_TIER_BUSY_H_

#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "daemon/core/events.h"
#include "storage/base/units.h"

namespace kvist::daemon {

// How long a tier takes to read: a stretch of time in which there was always a read in flight, and what it has brought. A long one is
// told in parts, so that what is learned from it is not too late.
// Threads: one at a time.
class TierBusy {
 public:
  explicit TierBusy(core::Tier tier) : tier_(tier) {}

  static constexpr absl::Duration kLongest = absl::Milliseconds(100);

  void Begin(uint64_t ticket, Bytes bytes, absl::Time now) {
    if (in_flight_.empty()) {
      since_ = now;
      read_ = {};
      from_rest_ = true;
      good_ = true;
    }
    in_flight_.emplace(ticket, bytes);
  }

  // What has come to an end, if anything: a stretch in which a read failed tells nothing.
  std::optional<core::TierRead> End(uint64_t ticket, bool good, absl::Time now) {
    const auto read = in_flight_.find(ticket);
    if (read == in_flight_.end()) return std::nullopt;
    read_ += read->second;
    good_ = good_ && good;
    in_flight_.erase(read);
    if (!in_flight_.empty() && now - since_ < kLongest) return std::nullopt;
    const core::TierRead told{read_, from_rest_, now - since_, tier_};
    const bool tell = good_ && told.took > absl::ZeroDuration();
    since_ = now;
    read_ = {};
    from_rest_ = false;
    good_ = true;
    return tell ? std::optional(told) : std::nullopt;
  }

 private:
  const core::Tier tier_;
  absl::flat_hash_map<uint64_t, Bytes> in_flight_;  // by ticket
  absl::Time since_ = absl::InfinitePast();
  Bytes read_{};
  bool from_rest_ = true;
  bool good_ = true;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_TIER_BUSY_H_
