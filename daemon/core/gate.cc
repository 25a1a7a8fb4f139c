// Load or recompute: what lies on disk is left alone where the engine computes it sooner than the disk reads it.
//
// Computing n chunks from position p on costs a * n + b * n * (p + n / 2): attention looks at all that is before. Reading costs its bytes, and
// what waits for the disk already. Both are learned (LearnedCost): from what engines of the space report, and from how long the disk was
// busy. While either is unknown all is loaded.
//
// A load goes as far as it gains most. Where all is on disk that is all or nothing, for the next chunk costs as much to read as the last one,
// and more to compute. DRAM isn't weighed: copying a chunk takes less than computing it in any engine that has reason to keep KV at all.
//
// What is left is read by and by, for nobody: so prompts that come again find it in DRAM, and a disk that has become faster is noticed.

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

void Core::On(const PrefillReported& event, Effects*) {
  const Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  spaces_[session->space].computing.Learn(event.chunks, event.chunks * (event.first + event.chunks / 2),
                                          absl::ToDoubleSeconds(event.took));
}

void Core::On(const TierRead& event, Effects*) {
  reading_cost_[static_cast<size_t>(event.from)].Learn(static_cast<double>(event.bytes.value), event.from_rest ? 1 : 0,
                                                       absl::ToDoubleSeconds(event.took));
}

void Core::FindWaits(const Session& session, uint32_t position, uint32_t have) {
  const Space& space = spaces_[session.space];
  const auto groups = static_cast<uint16_t>(space.spec.groups.size());
  to_read_.assign(position, {});
  left_.clear();
  waits_from_ = position;
  uint64_t looks = 0;
  for (uint16_t g = 0; g < groups; ++g) {
    const std::span<const ChunkIndex> needed = usable_.needed(GroupId{g});
    looks += needed.size();
    const uint32_t first = space.spec.groups[g].reuse.FirstNeeded(position);
    for (uint32_t at = std::max(first, have); at < position; ++at) {
      const ChunkIndex i = needed[at - first];
      const ChunkState state = chunks_[i].state;
      if (state != ChunkState::kBelow && state != ChunkState::kReading) continue;
      waits_from_ = std::min(waits_from_, at);
      if (state == ChunkState::kReading) continue;
      to_read_[at][static_cast<size_t>(ReadFrom(chunks_[i]))] += space.chunk_bytes(GroupId{g});
      left_.emplace_back(at, i);
    }
  }
  if (groups > 1) std::sort(left_.begin(), left_.end());
  chunks_.Charge(looks / kLooksPerWork);
}

uint32_t Core::BestPosition(const Space& space, uint32_t position) const {
  uint32_t best = waits_from_;
  double gain = 0;
  OfTiers bytes = reading_bytes_;
  for (uint32_t at = waits_from_; at < position; ++at) {
    double reading = 0;  // the tiers read beside each other
    for (size_t tier = 0; tier < kTiers; ++tier) {
      bytes[tier] += to_read_[at][tier];
      if (bytes[tier] > Bytes{} && reading_cost_[tier].known())
        reading = std::max(reading, reading_cost_[tier].Of(static_cast<double>(bytes[tier].value), 1));
    }
    const double chunks = at + 1 - waits_from_;
    const double saves = space.computing.Of(chunks, chunks * (waits_from_ + chunks / 2)) - reading;
    if (saves < gain) continue;
    gain = saves;
    best = at + 1;
  }
  return best;
}

uint32_t Core::WorthLoading(const Session& session, uint32_t position, uint32_t have) {
  left_.clear();
  const Space& space = spaces_[session.space];
  const bool known =
      std::any_of(reading_cost_.begin(), reading_cost_.end(), [](const LearnedCost& cost) { return cost.known(); });
  if (!options_.gate || !known || !space.computing.known()) return position;
  if (space.below == 0 && reading_.empty()) return position;
  uint32_t worth = position;
  std::vector<std::pair<uint32_t, ChunkIndex>> all;
  for (int tries = 0; tries < kTries && worth > have && !placement_.spent(); ++tries) {
    FindWaits(session, worth, have);
    if (tries == 0) all = left_;
    if (waits_from_ == worth) break;
    const uint32_t best = BestPosition(space, worth);
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

void Core::ReadLeft(Effects* out) {
  if (left_.empty() || !reading_.empty() || WaitsForSlots()) return;
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
