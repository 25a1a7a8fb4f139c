#ifndef KVIST_DAEMON_CORE_LOSS_H_
#define KVIST_DAEMON_CORE_LOSS_H_

#include <algorithm>

namespace kvist::core {

// What encoding has taken from values, of the shard that lost most: the difference's norm over the norm. 0: bit for bit.
struct Loss {
  double relative = 0;   // of all values
  double attention = 0;  // of what attention makes of them (storage/codec/attention.h); 0 also where that can't be said

  void Take(const Loss& other) {
    relative = std::max(relative, other.relative);
    attention = std::max(attention, other.attention);
  }
  bool operator==(const Loss&) const = default;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_LOSS_H_
