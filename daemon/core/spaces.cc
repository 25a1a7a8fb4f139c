#include "daemon/core/spaces.h"

#include <cstring>
#include <new>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::core {
namespace {

absl::Status Validate(const SpaceSpec& spec) {
  if (spec.groups.empty() || spec.groups.size() > Spaces::kGroupsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a space has 1 to ", Spaces::kGroupsMax, " cache groups, not ", spec.groups.size()));
  }
  for (const GroupSpec& group : spec.groups) {
    if (group.reuse.kind == GroupKind::kWindow && group.reuse.window_chunks == 0)
      return absl::InvalidArgumentError("a window group needs at least one chunk before a position, not 0");
    if (group.slot_bytes.empty() || group.ranks_per_shard == 0 || group.shards() > Spaces::kRanksMax ||
        group.ranks_per_shard > Spaces::kRanksMax || group.ranks() > Spaces::kRanksMax || group.ranks() != spec.ranks()) {
      return absl::InvalidArgumentError(absl::StrCat("a space has 1 to ", Spaces::kRanksMax,
                                                     " ranks, the same in every group, not ", group.shards(), " shards of ",
                                                     group.ranks_per_shard, " ranks each"));
    }
  }
  return absl::OkStatus();
}

// Whether a tenant that has brought `own` of `all` may bring another.
absl::Status MayBringMore(const std::string& tenant, std::string_view what, uint32_t own, uint32_t all, uint32_t most) {
  const uint32_t others = all - own;
  if (own < (most - others) / 2) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("tenant ", tenant, " has come with ", own, " ",
                                                   absl::string_view(what.data(), what.size()), " and others with ", others,
                                                   ", and a tenant may with half of what others leave of ", most,
                                                   ": use fewer, or restart this kvistd to forget those not in use"));
}

// In the index, for a later core.
SpaceRow* NoteSpace(const SpaceSpec& spec, pool::Sections* sections) {
  std::vector<uint64_t> sizes;
  for (const GroupSpec& group : spec.groups) {
    sizes.push_back(group.slot_bytes.size());
    for (const Bytes slot : group.slot_bytes) sizes.push_back(slot.value);
  }
  const size_t sizes_bytes = sizes.size() * sizeof(uint64_t);
  const Bytes bytes{sizeof(SpaceRow) + sizes_bytes + spec.description.size()};
  std::byte* const at = sections->New(static_cast<uint32_t>(ImageSection::kSpace), 0, bytes);
  std::memcpy(at + sizeof(SpaceRow), sizes.data(), sizes_bytes);
  std::memcpy(at + sizeof(SpaceRow) + sizes_bytes, spec.description.data(), spec.description.size());
  return new (at) SpaceRow{.digest = spec.digest,
                           .epoch = 0,
                           .sizes = static_cast<uint32_t>(sizes.size()),
                           .description_bytes = static_cast<uint32_t>(spec.description.size()),
                           .unused = 0};
}

}  // namespace

std::optional<SpaceId> Spaces::Find(const SpaceDigest& digest) const {
  const auto known = by_digest_.find(digest.word(0));
  if (known == by_digest_.end()) return std::nullopt;
  for (const SpaceId id : known->second) {
    if (spaces_[id.value].spec.digest == digest) return id;
  }
  return std::nullopt;
}

void Spaces::NewEpoch(SpaceId id) { (*this)[id].row->epoch = ++(*this)[id].epoch; }

absl::StatusOr<SpaceId> Spaces::Open(const SpaceSpec& spec, pool::SlotAllocator* slots, Tenants* tenants) {
  if (const std::optional<SpaceId> known = Find(spec.digest)) return *known;
  KVIST_RETURN_IF_ERROR(Validate(spec));
  OfTenant& own = of_tenant_[spec.tenant];
  KVIST_RETURN_IF_ERROR(
      MayBringMore(spec.tenant, "spaces (models, layouts, parallel shapes)", own.spaces, size(), kSpacesMax));
  Space space;
  space.spec = spec;
  for (const GroupSpec& group : spec.groups) {
    std::vector<pool::SlotClass>& classes = space.classes.emplace_back();
    for (const Bytes slot_bytes : group.slot_bytes) {
      const bool known = slot_sizes_.contains(slot_bytes.value);
      if (!known) {
        KVIST_RETURN_IF_ERROR(MayBringMore(spec.tenant, "sizes of slots", own.slot_sizes,
                                           static_cast<uint32_t>(slot_sizes_.size()), kSlotSizesMax));
      }
      KVIST_ASSIGN_OR_RETURN(classes.emplace_back(), slots->ClassFor(slot_bytes));
      // It stays, whether or not the space is taken.
      own.slot_sizes += slot_sizes_.insert(slot_bytes.value).second;
    }
  }
  space.tenant = tenants->Open(spec.tenant);
  const SpaceId id{static_cast<uint32_t>(spaces_.size())};
  space.row = NoteSpace(spec, &sections_);
  spaces_.push_back(std::move(space));
  ++own.spaces;
  by_digest_[spec.digest.word(0)].push_back(id);
  return id;
}

}  // namespace kvist::core
