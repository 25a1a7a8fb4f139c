#include "daemon/core/gate.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/core.h"

namespace kvist::core {
namespace {

// A hybrid space's shorter position may need other chunks that are on disk; so often one is looked for that is worth it.
constexpr int kTries = 2;
// Of what is left, read at a time: from one chunk to so many, so that it is learned what reading costs and what beginning does.
constexpr uint32_t kTrialMost = 16;
// Looking at a chunk's state costs so little beside finding or changing it, which is what work counts.
constexpr uint32_t kLooksPerWork = 8;

}  // namespace

void Gate::Learn(const TierRead& read) {
  reading_[static_cast<size_t>(read.from)].Learn(static_cast<double>(read.bytes.value), read.from_rest ? 1 : 0,
                                                 absl::ToDoubleSeconds(read.took));
}

bool Gate::known() const {
  return std::any_of(reading_.begin(), reading_.end(), [](const LearnedCost& cost) { return cost.known(); });
}

uint32_t Gate::Best(const LearnedCost& computing, const Waits& waits, OfTiers reading) const {
  uint32_t best = waits.from;
  double gain = 0;
  const auto end = static_cast<uint32_t>(waits.to_read.size());
  for (uint32_t at = waits.from; at < end; ++at) {
    double reads = 0;  // the tiers read beside each other
    for (size_t tier = 0; tier < kTiers; ++tier) {
      reading[tier] += waits.to_read[at][tier];
      if (reading[tier] > Bytes{} && reading_[tier].known())
        reads = std::max(reads, reading_[tier].Of(static_cast<double>(reading[tier].value), 1));
    }
    const double chunks = at + 1 - waits.from;
    const double saves = computing.Of(chunks, chunks * (waits.from + chunks / 2)) - reads;
    if (saves < gain) continue;
    gain = saves;
    best = at + 1;
  }
  return best;
}

void Core::On(const PrefillReported& event, Effects*) {
  const Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  spaces_[session->space].computing.Learn(event.chunks, event.chunks * (event.first + event.chunks / 2),
                                          absl::ToDoubleSeconds(event.took));
}

void Core::FindWaits(const Session& session, uint32_t position, uint32_t have) {
  const Space& space = spaces_[session.space];
  const auto groups = static_cast<uint16_t>(space.spec.groups.size());
  gated_.to_read.assign(position, {});
  left_.clear();
  gated_.from = position;
  uint64_t looks = 0;
  for (uint16_t g = 0; g < groups; ++g) {
    const std::span<const ChunkIndex> needed = usable_.needed(GroupId{g});
    looks += needed.size();
    const uint32_t first = space.spec.groups[g].reuse.FirstNeeded(position);
    for (uint32_t at = std::max(first, have); at < position; ++at) {
      const ChunkIndex i = needed[at - first];
      const ChunkState state = chunks_[i].state;
      if (state != ChunkState::kBelow && state != ChunkState::kReading) continue;
      gated_.from = std::min(gated_.from, at);
      if (state == ChunkState::kReading) continue;
      gated_.to_read[at][static_cast<size_t>(ReadFrom(chunks_[i]))] += space.chunk_bytes(GroupId{g});
      left_.emplace_back(at, i);
    }
  }
  if (groups > 1) std::sort(left_.begin(), left_.end());
  chunks_.Charge(looks / kLooksPerWork);
}

uint32_t Core::WorthLoading(const Session& session, uint32_t position, uint32_t have) {
  left_.clear();
  const Space& space = spaces_[session.space];
  if (!options_.gate || !gate_.known() || !space.computing.known()) return position;
  if (space.below == 0 && reads_.empty()) return position;
  uint32_t worth = position;
  std::vector<std::pair<uint32_t, ChunkIndex>> all;
  for (int tries = 0; tries < kTries && worth > have && !placement_.spent(); ++tries) {
    FindWaits(session, worth, have);
    if (tries == 0) all = left_;
    if (gated_.from == worth) break;
    const uint32_t best = gate_.Best(space.computing, gated_, reads_.bytes());
    if (best == worth) break;
    const std::optional<uint32_t> shorter = usable_.Shorten(best);
    if (!shorter.has_value()) break;  // it would cost too much to find: then this is loaded
    worth = *shorter;
  }
  left_.clear();
  for (const auto& [at, chunk] : all) {
    if (at >= worth) left_.emplace_back(at, chunk);
  }
  counters_.chunks_recomputed += left_.size();
  return worth;
}

// So prompts that come again find in DRAM what was left alone, and a tier that has become faster is noticed.
void Core::ReadLeft(Effects* out) {
  if (left_.empty() || !reads_.empty() || WaitsForSlots()) return;
  Tenant& tenant = tenants_[spaces_[chunks_[left_.front().second].space].tenant];
  const uint32_t most = ++trials_ % kTrialMost + 1;
  for (uint32_t read = 0; read < most && read < left_.size() && !placement_.spent(); ++read) {
    const ChunkIndex i = left_[read].second;
    // Only into slots that are free or whose chunks are on disk, too, and not into those that stores will want.
    if (AtHand(tenant) < ReserveOf(tenant) / 2 || chunks_[i].state != ChunkState::kBelow ||
        !BeginRead(i, /*by_layer=*/false, Tenants::Victims::kOnDisk, out))
      return;
  }
}

}  // namespace kvist::core
