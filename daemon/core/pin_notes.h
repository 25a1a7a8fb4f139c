#ifndef KVIST_DAEMON_CORE_PIN_NOTES_H_
#define KVIST_DAEMON_CORE_PIN_NOTES_H_

#include <map>
#include <utility>
#include <vector>

#include "daemon/core/effects.h"
#include "daemon/core/events.h"
#include "storage/base/ids.h"

namespace kvist::core {

// What a later daemon is to be told of pins, until it is handed on. Threads: one.
class PinNotes {
 public:
  void Add(SpaceId space, PinNote note) { notes_[space].push_back(std::move(note)); }
  // What was added since the last call, each space's in that order.
  std::vector<PinsNoted> Take() {
    std::vector<PinsNoted> taken;
    for (auto& [space, notes] : std::exchange(notes_, {})) taken.push_back({space, std::move(notes)});
    return taken;
  }

 private:
  std::map<SpaceId, std::vector<PinNote>> notes_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_PIN_NOTES_H_
