#include "tests/unit/core/core_fixture.h"

#include <utility>

#include "storage/base/check.h"

namespace kvist::core {

ChunkKey KeyOf(uint64_t n) {
  ChunkKey key;
  for (size_t i = 0; i < key.bytes.size(); ++i)
    key.bytes[i] = static_cast<uint8_t>((n + 1) * 0x9e3779b97f4a7c15 >> (i % 8 * 8));
  return key;
}

std::vector<ChunkKey> KeysOf(std::initializer_list<uint64_t> numbers) {
  std::vector<ChunkKey> keys;
  for (const uint64_t n : numbers) keys.push_back(KeyOf(n));
  return keys;
}

SpaceSpec SpaceNamed(std::string_view name, std::vector<Bytes> slot_bytes_of_ranks, std::string_view tenant) {
  SpaceSpec spec;
  for (size_t i = 0; i < name.size() && i < 16; ++i) spec.digest.bytes[i] = static_cast<uint8_t>(name[i]);
  for (size_t i = 0; i < tenant.size() && i < 16; ++i) spec.digest.bytes[16 + i] = static_cast<uint8_t>(tenant[i]);
  spec.tenant = tenant;
  spec.model = name;
  spec.groups.push_back({.slot_bytes = std::move(slot_bytes_of_ranks)});
  return spec;
}

CoreFixture::CoreFixture(Options options, pool::Sections* sections) { Restart(options, sections); }

void CoreFixture::Restart(const Options& options, pool::Sections* sections) {
  core.reset();
  pool::SlotAllocator::Options pool;
  pool.slab_bytes = options.slab_bytes;
  pool.regions.assign(options.regions, options.slab_bytes * options.slabs);
  slots = std::make_unique<pool::SlotAllocator>(pool::SlotAllocator::Create(pool).value());
  core = std::make_unique<Core>(options.core, slots.get(), sections);
  watched = false;
}

absl::Status CoreFixture::Open(uint64_t session, std::string_view instance, Role role, uint16_t rank, const SpaceSpec& space,
                               uint32_t near) {
  const Effects effects = Do(SessionOpened{SessionId{session}, std::string(instance), role, Rank{rank}, space, near});
  KVIST_CHECK(!effects.empty());  // its answer comes first
  if (const auto* refused = std::get_if<SessionRefused>(&effects[0])) return refused->why;
  KVIST_CHECK(std::holds_alternative<SessionAccepted>(effects[0]));
  return absl::OkStatus();
}

SessionId CoreFixture::Worker(std::string_view instance, const SpaceSpec& space, uint16_t rank, uint32_t near) {
  const SessionId session{next_session++};
  KVIST_CHECK(Open(session.value, instance, Role::kWorker, rank, space, near).ok());
  return session;
}

LookupAnswered CoreFixture::Lookup(SessionId session, const std::vector<ChunkKey>& keys, absl::Duration lease) {
  const Effects effects = Do(LookupAsked{session, RequestTag{next_tag++}, keys, lease});
  KVIST_CHECK(effects.size() == 1);
  return std::get<LookupAnswered>(effects[0]);
}

std::optional<CopyStarted> CoreFixture::Started(Effects effects) {
  KVIST_CHECK(effects.size() == 1);
  ended.reset();
  if (auto* copy = std::get_if<CopyStarted>(&effects[0])) return std::move(*copy);
  ended = std::get<OpEnded>(effects[0]);
  return std::nullopt;
}

std::optional<CopyStarted> CoreFixture::Store(SessionId session, const std::vector<ChunkKey>& keys,
                                              std::optional<ChunkKey> parent, GroupId group) {
  return Started(Do(StoreAsked{session, RequestTag{next_tag++}, group, parent, keys}));
}

std::optional<CopyStarted> CoreFixture::Load(SessionId session, LeaseId lease, uint32_t first, uint32_t count,
                                             GroupId group) {
  return Started(Do(LoadAsked{session, RequestTag{next_tag++}, lease, group, first, count}));
}

uint32_t CoreFixture::Keep(SessionId session, const std::vector<ChunkKey>& keys, std::optional<ChunkKey> parent,
                           GroupId group) {
  const std::optional<CopyStarted> copy = Store(session, keys, parent, group);
  if (!copy.has_value()) return 0;
  Finish(copy->op);
  return static_cast<uint32_t>(copy->slots.size());
}

Effects CoreFixture::PassTime(absl::Duration duration) {
  now += duration;
  return Do(Tick{now});
}

}  // namespace kvist::core
