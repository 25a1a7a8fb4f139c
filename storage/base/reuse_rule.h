#ifndef KVIST_STORAGE_BASE_REUSE_RULE_H_
#define KVIST_STORAGE_BASE_REUSE_RULE_H_

#include <algorithm>
#include <cstdint>

#include "storage/base/ids.h"

namespace kvist {

// Which chunks of a chain a cache group needs, so that an engine can go on from a position (a count of chunks):
//   kFull    all before it: every token looks at the whole prefix
//   kWindow  the last `window_chunks` before it: a token looks at itself and the `window - 1` before it only
//   kState   the one before it, which holds the recurrent state after its last token
struct ReuseRule {
  GroupKind kind = GroupKind::kFull;
  uint32_t window_chunks = 0;  // of kWindow, at least 1

  // Of a window of that many tokens, at least 1.
  static constexpr ReuseRule Window(uint32_t window_tokens, uint32_t chunk_tokens) {
    return {GroupKind::kWindow, std::max(1u, (window_tokens - 1 + chunk_tokens - 1) / chunk_tokens)};
  }

  // The first of the chunks [first, position) that are needed.
  constexpr uint32_t FirstNeeded(uint32_t position) const {
    switch (kind) {
      case GroupKind::kFull: return 0;
      case GroupKind::kWindow: return position - std::min(position, window_chunks);
      case GroupKind::kState: return position - std::min(position, 1u);
    }
    return 0;
  }
  // Whether chunks hang on the ones before them, because they are useless without.
  constexpr bool chained() const { return kind == GroupKind::kFull; }

  friend bool operator==(const ReuseRule&, const ReuseRule&) = default;
};

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_REUSE_RULE_H_
