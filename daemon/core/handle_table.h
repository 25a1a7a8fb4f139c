#ifndef KVIST_DAEMON_CORE_HANDLE_TABLE_H_
#define KVIST_DAEMON_CORE_HANDLE_TABLE_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/planted_bug.h"
#include "storage/base/check.h"

namespace kvist::core {

// Records that outsiders name by a Handle. A place is reused under a new generation, so a handle that outlived its record is
// recognised and refused.
//
// Invariant: a live place's generation is odd, a free one's even; both only grow. Cost: O(1).
template <class H, class T>
class HandleTable {
 public:
  // `first_generation`: of every place. Random where handles may outlive the process and come back to its successor.
  explicit HandleTable(uint32_t first_generation = 0) : first_generation_(first_generation & ~1u) {}

  H Insert(T record) {
    uint32_t index;
    if (free_.empty()) {
      index = static_cast<uint32_t>(places_.size());
      places_.push_back({first_generation_, std::nullopt});
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Place& place = places_[index];
    ++place.generation;
    place.record.emplace(std::move(record));
    return {index, place.generation};
  }

  // The record, or nothing when the handle is stale or never was one.
  T* Find(H handle) {
    if (handle.index >= places_.size()) return nullptr;
    Place& place = places_[handle.index];
    if (planted != PlantedBug::kGenerationNotChecked && place.generation != handle.generation) return nullptr;
    return place.record.has_value() ? &*place.record : nullptr;
  }

  T Take(H handle) {
    T* record = Find(handle);
    KVIST_CHECK(record != nullptr);
    T taken = std::move(*record);
    Place& place = places_[handle.index];
    place.record.reset();
    ++place.generation;
    free_.push_back(handle.index);
    return taken;
  }

  size_t size() const { return places_.size() - free_.size(); }

  template <class F>
  void ForEach(F f) {
    for (uint32_t i = 0; i < places_.size(); ++i) {
      if (places_[i].record.has_value()) f(H{i, places_[i].generation}, *places_[i].record);
    }
  }

 private:
  struct Place {
    uint32_t generation;
    std::optional<T> record;
  };
  uint32_t first_generation_;
  std::vector<Place> places_;
  std::vector<uint32_t> free_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_HANDLE_TABLE_H_
