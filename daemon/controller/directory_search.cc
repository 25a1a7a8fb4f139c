#include "daemon/controller/directory_search.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace kvist::controller {
namespace {

// Keys whose cache lines are read at once; the block before is looked at meanwhile. Larger: more is read in vain where nobody has more.
constexpr uint32_t kSearchBlock = 32;

}  // namespace

uint32_t Holding::needed() const {
  uint32_t sum = 0;
  for (const uint32_t count : in_tiers) sum += count;
  return sum;
}

uint32_t Holding::In(RestTier tier) const {
  uint32_t sum = 0;
  for (uint8_t bits = 0; bits <= TierSet::kAll; ++bits) {
    if (TierSet{bits}.Has(tier)) sum += in_tiers[bits];
  }
  return sum;
}

uint32_t Holding::QuickestIn(RestTier tier) const {
  const uint8_t quicker = static_cast<uint8_t>(TierSet::Of(tier).bits - 1);
  uint32_t sum = 0;
  for (uint8_t bits = 0; bits <= TierSet::kAll; ++bits) {
    if (TierSet{bits}.Has(tier) && (bits & quicker) == 0) sum += in_tiers[bits];
  }
  return sum;
}

DirectorySearch::DirectorySearch(const Directory* directory)
    : directory_(*directory),
      reader_(directory->index_.readers()),
      row_of_(kTellingsMax),
      row_search_(kTellingsMax),
      holders_(kTellingsMax) {}

absl::StatusOr<std::span<const Holding>> DirectorySearch::Find(const SpaceDigest& digest, std::span<const ChunkKey> keys) {
  if (keys.size() > kKeysMax) {
    return absl::InvalidArgumentError(absl::StrCat("a lookup of ", keys.size(), " keys, more than ", kKeysMax));
  }
  const Directory::Space* const space = directory_.FindSpace(digest);
  if (space == nullptr) return absl::NotFoundError("no node has introduced this space");
  const std::vector<ReuseRule>& rules = space->view.groups;
  const Reading reading(&reader_);
  const uint64_t time = directory_.tellings_.Time();
  ++search_;
  groups_ = static_cast<uint32_t>(rules.size());
  stride_ = static_cast<uint32_t>(keys.size());
  first_read_ = true;
  owners_.clear();
  reach_.clear();
  fingerprints_.resize(keys.size());
  uint32_t most = stride_;  // nobody can go on beyond
  for (const bool chained : {true, false}) {
    const auto groups = static_cast<uint16_t>(groups_);
    for (uint16_t g = 0; g < groups; ++g) {
      if (rules[g].chained() != chained || most == 0) continue;
      if (chained) {
        ReadFull(*space, GroupId{g}, keys.first(most));
      } else {
        ReadOther(*space, GroupId{g}, keys.first(most));
      }
      first_read_ = false;
      most = reach_.empty() ? 0 : *std::ranges::max_element(reach_);
    }
  }
  directory_.tellings_.See(time, owners_, &seen_);
  holdings_.clear();
  for (uint32_t row = 0; row < owners_.size(); ++row) {
    if (!seen_[row].has_value()) continue;
    Holding holding{seen_[row]->node, seen_[row]->stale, Usable(rules, row)};
    if (holding.chunks == 0) continue;
    const auto groups = static_cast<uint16_t>(groups_);
    for (uint16_t g = 0; g < groups; ++g) {
      const uint8_t* const bytes = BytesOf(row, g);
      for (uint32_t k = rules[g].FirstNeeded(holding.chunks); k < holding.chunks; ++k) ++holding.in_tiers[bytes[k]];
    }
    holdings_.push_back(holding);
  }
  std::ranges::sort(holdings_, [](const Holding& a, const Holding& b) {
    return a.chunks != b.chunks ? a.chunks > b.chunks : a.node < b.node;
  });
  return holdings_;
}

void DirectorySearch::MakeRow(TellingId telling) {
  const auto row = static_cast<uint32_t>(owners_.size());
  row_search_[telling] = search_;
  row_of_[telling] = row;
  owners_.push_back(telling);
  reach_.push_back(stride_);
  const size_t row_bytes = size_t{groups_} * stride_;
  if (bytes_.size() < (row + 1) * row_bytes) bytes_.resize(2 * (row + 1) * row_bytes);
  std::memset(BytesOf(row, 0), 0, row_bytes);
}

template <class F>
void DirectorySearch::ReadBlock(const Directory::Space& space, GroupId group, std::span<const ChunkKey> keys, uint32_t first,
                                F note) {
  const auto count = static_cast<uint32_t>(keys.size());
  const auto ask = [&](uint32_t from) {
    for (uint32_t k = from; k < std::min(count, from + kSearchBlock); ++k) {
      fingerprints_[k] = directory_.fingerprint_(space.id, group, keys[k]);
    }
    for (uint32_t k = from; k < std::min(count, from + kSearchBlock); ++k) directory_.index_.Touch(fingerprints_[k]);
  };
  if (first == 0) ask(0);
  ask(first + kSearchBlock);
  for (uint32_t k = first; k < std::min(count, first + kSearchBlock); ++k) {
    Holder* next = holders_.data();
    directory_.index_.Visit(fingerprints_[k], [&next](TellingId telling, TierSet tiers) { *next++ = {telling, tiers}; });
    for (const Holder* holder = holders_.data(); holder != next; ++holder) note(k, holder->telling, holder->tiers);
  }
}

void DirectorySearch::ReadFull(const Directory::Space& space, GroupId group, std::span<const ChunkKey> keys) {
  group_reach_.assign(owners_.size(), 0);
  for (uint32_t first = 0; first < keys.size(); first += kSearchBlock) {
    ReadBlock(space, group, keys, first, [&](uint32_t k, TellingId telling, TierSet tiers) {
      if (first_read_ && k == 0) {
        MakeRow(telling);
        group_reach_.push_back(0);
      }
      if (HasRow(telling)) BytesOf(row_of_[telling], group.value)[k] = tiers.bits;
    });
    const auto end = std::min(static_cast<uint32_t>(keys.size()), first + kSearchBlock);
    bool anybody = false;  // has all so far
    for (uint32_t row = 0; row < owners_.size(); ++row) {
      if (group_reach_[row] < first) continue;
      const uint8_t* const bytes = BytesOf(row, group.value);
      while (group_reach_[row] < end && bytes[group_reach_[row]] != 0) ++group_reach_[row];
      anybody = anybody || group_reach_[row] == end;
    }
    if (!anybody) break;
  }
  for (uint32_t row = 0; row < owners_.size(); ++row) reach_[row] = std::min(reach_[row], group_reach_[row]);
}

void DirectorySearch::ReadOther(const Directory::Space& space, GroupId group, std::span<const ChunkKey> keys) {
  for (uint32_t first = 0; first < keys.size(); first += kSearchBlock) {
    ReadBlock(space, group, keys, first, [&](uint32_t k, TellingId telling, TierSet tiers) {
      if (first_read_ && !HasRow(telling)) MakeRow(telling);
      if (HasRow(telling)) BytesOf(row_of_[telling], group.value)[k] = tiers.bits;
    });
  }
}

uint32_t DirectorySearch::Usable(const std::vector<ReuseRule>& rules, uint32_t row) {
  uint32_t end = reach_[row];
  const auto others = std::ranges::count_if(rules, [](const ReuseRule& rule) { return !rule.chained(); });
  low_.assign(groups_, end);
  // Each pulls it back to where it can go on, until none does; each step back is for good.
  int64_t content = 0;
  for (uint16_t g = 0; end > 0 && content < others; g = static_cast<uint16_t>((g + 1) % groups_)) {
    if (rules[g].chained()) continue;
    const uint32_t usable = LastUsable(rules[g], row, g, end);
    content = usable == end ? content + 1 : 1;
    end = usable;
  }
  return end;
}

uint32_t DirectorySearch::LastUsable(const ReuseRule& rule, uint32_t row, uint16_t group, uint32_t end) {
  const uint8_t* const bytes = BytesOf(row, group);
  uint32_t& low = low_[group];
  low = std::min(low, end);
  while (low > rule.FirstNeeded(end)) {
    if (bytes[--low] == 0) end = low;
  }
  return end;
}

}  // namespace kvist::controller
