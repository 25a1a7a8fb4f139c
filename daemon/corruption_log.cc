#include "daemon/corruption_log.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "daemon/node_rows.h"
#include "storage/base/log_subject.h"

namespace kvist::daemon {
namespace {

constexpr size_t kSpaceDigits = 16;

std::string WhatHappenedTo(uint64_t chunks, core::Tier tier) {
  const std::string what = chunks == 1 ? "a chunk" : absl::StrCat(chunks, " chunks");
  const char* const was = chunks == 1 ? "was" : "were";
  switch (tier) {
    case core::Tier::kDram: return absl::StrCat(what, " in DRAM held other bytes than were stored (pool.verify)");
    case core::Tier::kSsd: return absl::StrCat(what, " on the SSD tier ", was, " not what was stored there");
    case core::Tier::kRemote: return absl::StrCat(what, " in the remote store ", was, " not what was stored there");
  }
  return what;
}

const char* AdviceFor(core::Tier tier) {
  switch (tier) {
    case core::Tier::kDram: return "memory may be failing";
    case core::Tier::kSsd: return "a disk may be failing (`kvistctl ssd` says which, and what was found)";
    case core::Tier::kRemote:
      return "the store, or who else writes to it, may be failing (`kvistctl status -o json` says what was found)";
  }
  return "";
}

}  // namespace

void CorruptionLog::Found(const core::CorruptionFound& found, const SpaceDigest& space, absl::Time now) {
  OfTier& tier = tiers_[static_cast<size_t>(found.tier)];
  tier.unsaid += found.chunks;
  const bool news = now - tier.said >= kQuiet;
  if (!news && tier.unsaid < 10 * tier.line) return;
  const LogSubject about({.space = Hex(space)});
  spdlog::error("{} and will not be served again: space {}; {}", WhatHappenedTo(tier.unsaid, found.tier),
                Hex(space).substr(0, kSpaceDigits), AdviceFor(found.tier));
  tier = {now, tier.unsaid, 0};
}

}  // namespace kvist::daemon
