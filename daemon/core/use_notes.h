#ifndef KVIST_DAEMON_CORE_USE_NOTES_H_
#define KVIST_DAEMON_CORE_USE_NOTES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "daemon/core/disk_ages.h"
#include "daemon/core/effects.h"
#include "daemon/core/events.h"

namespace kvist::core {

// What a later daemon is to be told of uses, until it is handed on: many together, for a daemon that is killed may lose what waits. Threads: one.
class UseNotes {
 public:
  static constexpr size_t kTogether = 256;

  void Add(int32_t period, DiskUses::Use use) {
    notes_[period].push_back(use);
    if (++waiting_ >= kTogether) due_ = true;
  }
  // What waits is handed on, though it is little.
  void HandOn() { due_ = due_ || waiting_ > 0; }
  // Another period has begun: that is handed on, too.
  void Turned() { due_ = true; }
  // What is due, earlier periods first; the last says how much of the one that runs is over, and may have no uses.
  std::vector<UsesNoted> Take(const DiskAges& ages) {
    std::vector<UsesNoted> taken;
    if (!std::exchange(due_, false)) return taken;
    notes_[ages.period()];
    waiting_ = 0;
    for (auto& [period, uses] : std::exchange(notes_, {})) {
      const Bytes written = period == ages.period() ? ages.written() : Bytes{};
      for (size_t at = 0; at == 0 || at < uses.size(); at += kTogether) {
        const size_t end = std::min(at + kTogether, uses.size());
        taken.push_back(
            {{period, written, {uses.begin() + static_cast<ptrdiff_t>(at), uses.begin() + static_cast<ptrdiff_t>(end)}}});
      }
    }
    return taken;
  }

 private:
  std::map<int32_t, std::vector<DiskUses::Use>> notes_;  // by period
  size_t waiting_ = 0;
  bool due_ = false;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_USE_NOTES_H_
