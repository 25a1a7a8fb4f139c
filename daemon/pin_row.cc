#include "daemon/pin_row.h"

#include <bit>
#include <concepts>
#include <cstring>
#include <string>
#include <string_view>

#include "daemon/core/core.h"
#include "storage/base/ids.h"

namespace kvist::daemon {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");
constexpr size_t kKeyBytes = sizeof(ChunkKey{}.bytes);

template <std::integral T>
void Append(std::string* to, T v) {
  to->append(reinterpret_cast<const char*>(&v), sizeof v);
}
void Append(std::string* to, const ChunkKey& key) { to->append(reinterpret_cast<const char*>(key.bytes.data()), kKeyBytes); }

// What must be there, and is cut off.
template <std::integral T>
T Cut(std::string_view* from) {
  T v;
  std::memcpy(&v, from->data(), sizeof v);
  from->remove_prefix(sizeof v);
  return v;
}
ChunkKey CutKey(std::string_view* from) {
  ChunkKey key;
  std::memcpy(key.bytes.data(), from->data(), kKeyBytes);
  from->remove_prefix(kKeyBytes);
  return key;
}

}  // namespace

ssd::PinRow ToRow(uint32_t space, const core::PinNote& note, absl::Time now) {
  ssd::PinRow row{.space = space, .name = {}, .description = {}};
  Append(&row.name, static_cast<uint8_t>(note.pin.by_operator));
  Append(&row.name, note.pin.asked);
  Append(&row.name, note.pin.key);
  row.name += note.pin.owner;
  Append(&row.description, note.count);
  Append(&row.description, absl::ToUnixMillis(now + note.lasts));  // INT64_MAX of the infinite future
  for (const ChunkKey& key : note.keys) Append(&row.description, key);
  return row;
}

std::optional<core::PinNote> ParsePin(const ssd::PinRow& row, absl::Time now) {
  std::string_view name = row.name, description = row.description;
  if (name.size() < 1 + sizeof(uint32_t) + kKeyBytes || static_cast<uint8_t>(name[0]) > 1) return std::nullopt;
  if (description.size() < 2 * sizeof(uint64_t)) return std::nullopt;
  core::PinNote note;
  note.pin.by_operator = Cut<uint8_t>(&name) == 1;
  note.pin.asked = Cut<uint32_t>(&name);
  note.pin.key = CutKey(&name);
  note.pin.owner = std::string(name);
  note.count = Cut<uint64_t>(&description);
  const auto ends = Cut<int64_t>(&description);
  note.lasts = ends == INT64_MAX ? absl::InfiniteDuration() : absl::FromUnixMillis(ends) - now;
  if (description.size() % kKeyBytes != 0) return std::nullopt;
  while (!description.empty()) note.keys.push_back(CutKey(&description));
  if (note.count == 0 || note.keys.empty() || note.keys.size() > note.pin.asked || note.pin.asked > core::Core::kKeysMax)
    return std::nullopt;
  return note;
}

}  // namespace kvist::daemon
