#include "storage/ssd/catalog_rows.h"

#include <bit>
#include <concepts>
#include <cstring>

#include "storage/base/check.h"
#include "storage/base/xxh3.h"

namespace kvist::ssd {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie in memory");

constexpr uint8_t kHasParent = 1;
constexpr uint8_t kEncoded = 2;
constexpr size_t kCheckBytes = 4;
constexpr size_t kUseBytes = 4 + 2 + 32;

uint32_t CheckOf(std::string_view key, std::string_view value) {
  // The value's hash is seeded with the key's, so that a value under another key fails, and nothing has to be copied together.
  return static_cast<uint32_t>(XXH3_64bits_withSeed(value.data(), value.size(), XXH3_64bits(key.data(), key.size())));
}

class RowWriter {
 public:
  explicit RowWriter(RowKind kind) { Little(static_cast<uint8_t>(kind)); }

  template <std::unsigned_integral T>
  RowWriter& Little(T v) {
    row_.bytes.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  template <std::unsigned_integral T>
  RowWriter& Big(T v) {
    for (int shift = 8 * (static_cast<int>(sizeof v) - 1); shift >= 0; shift -= 8)
      row_.bytes.push_back(static_cast<char>(v >> shift));
    return *this;
  }
  template <size_t kBytes>
  RowWriter& Raw(const std::array<uint8_t, kBytes>& bytes) {
    row_.bytes.append(reinterpret_cast<const char*>(bytes.data()), kBytes);
    return *this;
  }
  RowWriter& Text(std::string_view text) {
    row_.bytes.append(text);
    return *this;
  }
  // The key is complete; the value begins.
  RowWriter& Value() {
    row_.key_bytes = row_.bytes.size();
    return Little(kRowVersion);
  }
  EncodedRow Take() {
    Little(CheckOf(row_.key(), row_.value()));
    return std::move(row_);
  }
  std::string TakeKey() { return std::move(row_.bytes); }

 private:
  EncodedRow row_;
};

// Reads what is there; what isn't makes it false for good.
class RowReader {
 public:
  explicit RowReader(std::string_view bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  T Little() {
    T v = 0;
    if (const char* at = Next(sizeof v)) std::memcpy(&v, at, sizeof v);
    return v;
  }
  template <std::unsigned_integral T>
  T Big() {
    T v = 0;
    if (const char* at = Next(sizeof v)) {
      for (size_t i = 0; i < sizeof v; ++i) v = static_cast<T>(v << 8 | static_cast<uint8_t>(at[i]));
    }
    return v;
  }
  template <size_t kBytes>
  void Raw(std::array<uint8_t, kBytes>* to) {
    if (const char* at = Next(kBytes)) std::memcpy(to->data(), at, kBytes);
  }
  Place NextPlace() {
    const auto segment = Little<uint32_t>();
    return {segment, Little<uint32_t>()};
  }
  std::string Text() {
    const size_t bytes = rest_.size();
    const char* at = Next(bytes);
    return at == nullptr ? std::string() : std::string(at, bytes);
  }
  size_t left() const { return rest_.size(); }
  // All was there, and nothing else.
  bool Ended() const { return good_ && rest_.empty(); }

 private:
  const char* Next(size_t bytes) {
    if (!good_ || rest_.size() < bytes) {
      good_ = false;
      return nullptr;
    }
    const char* at = rest_.data();
    rest_.remove_prefix(bytes);
    return at;
  }

  std::string_view rest_;
  bool good_ = true;
};

// Parses a row of that kind: `read` has what is behind the kind in the key, and the value between its version and its check, both of
// which are right; it reads all of both, or says that what it found can't be.
template <class Row, class Read>
std::optional<Row> Parse(RowKind kind, std::string_view key, std::string_view value, Read read) {
  if (KindOf(key) != kind || value.size() < 1 + kCheckBytes || static_cast<uint8_t>(value[0]) != kRowVersion)
    return std::nullopt;
  const std::string_view body = value.substr(0, value.size() - kCheckBytes);
  uint32_t check = 0;
  std::memcpy(&check, value.data() + body.size(), kCheckBytes);
  if (check != CheckOf(key, body)) return std::nullopt;
  RowReader name(key.substr(1)), rest(body.substr(1));
  Row row;
  if (!read(&name, &rest, &row) || !name.Ended() || !rest.Ended()) return std::nullopt;
  return row;
}

RowWriter BeginChunk(const ChunkId& id) {
  RowWriter writer(RowKind::kChunk);
  writer.Big(id.position).Big(id.space).Big(id.group).Raw(id.key.bytes);
  return writer;
}

}  // namespace

std::optional<RowKind> KindOf(std::string_view key) {
  if (key.empty() || static_cast<uint8_t>(key[0]) >= kRowKinds) return std::nullopt;
  return static_cast<RowKind>(key[0]);
}

std::string MetaKey() { return RowWriter(RowKind::kMeta).TakeKey(); }
std::string SegmentKey(uint32_t number) { return RowWriter(RowKind::kSegment).Big(number).TakeKey(); }
std::string ClearKey(const SpaceDigest& space) { return RowWriter(RowKind::kClear).Raw(space.bytes).TakeKey(); }
std::string PinKey(uint32_t space, std::string_view name) {
  return RowWriter(RowKind::kPin).Big(space).Text(name).TakeKey();
}
std::string ChunkRowKey(const ChunkId& id) { return BeginChunk(id).TakeKey(); }
std::string UseKey(uint32_t period, uint32_t part) { return RowWriter(RowKind::kUse).Big(period).Big(part).TakeKey(); }

EncodedRow Encode(const MetaRow& row) {
  RowWriter writer(RowKind::kMeta);
  writer.Value().Little(static_cast<uint8_t>(row.rebuild_pending)).Little(row.format).Raw(row.store.bytes);
  return writer.Little(row.incarnation).Little(row.generation).Little(row.commits).Little(row.settled).Take();
}

std::optional<MetaRow> ParseMeta(std::string_view key, std::string_view value) {
  return Parse<MetaRow>(RowKind::kMeta, key, value, [](RowReader*, RowReader* rest, MetaRow* row) {
    const auto pending = rest->Little<uint8_t>();
    row->rebuild_pending = pending != 0;
    row->format = rest->Little<uint32_t>();
    rest->Raw(&row->store.bytes);
    row->incarnation = rest->Little<uint64_t>();
    row->generation = rest->Little<uint64_t>();
    row->commits = rest->Little<uint64_t>();
    if (rest->left() > 0) row->settled = rest->Little<uint64_t>();
    return pending <= 1;
  });
}

EncodedRow Encode(const SpaceRow& row) {
  KVIST_CHECK(row.description.size() <= kRowDescriptionMax);
  RowWriter writer(RowKind::kSpace);
  return writer.Big(row.number).Value().Raw(row.digest.bytes).Text(row.description).Take();
}

std::optional<SpaceRow> ParseSpace(std::string_view key, std::string_view value) {
  return Parse<SpaceRow>(RowKind::kSpace, key, value, [](RowReader* name, RowReader* rest, SpaceRow* row) {
    row->number = name->Big<uint32_t>();
    rest->Raw(&row->digest.bytes);
    if (rest->left() > kRowDescriptionMax) return false;
    row->description = rest->Text();
    return true;
  });
}

EncodedRow Encode(const SegmentRow& row) {
  RowWriter writer(RowKind::kSegment);
  return writer.Big(row.number).Value().Little(static_cast<uint8_t>(row.state)).Little(row.epoch).Raw(row.secret).Take();
}

std::optional<SegmentRow> ParseSegment(std::string_view key, std::string_view value) {
  return Parse<SegmentRow>(RowKind::kSegment, key, value, [](RowReader* name, RowReader* rest, SegmentRow* row) {
    row->number = name->Big<uint32_t>();
    const auto state = rest->Little<uint8_t>();
    row->state = static_cast<SegmentState>(state);
    row->epoch = rest->Little<uint64_t>();
    rest->Raw(&row->secret);
    return state <= static_cast<uint8_t>(SegmentState::kFenced);
  });
}

EncodedRow Encode(const ClearRow& row) {
  RowWriter writer(RowKind::kClear);
  writer.Raw(row.space.bytes).Value().Little(row.sequence).Little(row.place.segment).Little(row.place.unit);
  return writer.Take();
}

std::optional<ClearRow> ParseClear(std::string_view key, std::string_view value) {
  return Parse<ClearRow>(RowKind::kClear, key, value, [](RowReader* name, RowReader* rest, ClearRow* row) {
    name->Raw(&row->space.bytes);
    row->sequence = rest->Little<uint64_t>();
    row->place = rest->NextPlace();
    return true;
  });
}

EncodedRow Encode(const PinRow& row) {
  KVIST_CHECK(row.name.size() <= kPinNameMax && row.description.size() <= kRowDescriptionMax);
  RowWriter writer(RowKind::kPin);
  return writer.Big(row.space).Text(row.name).Value().Text(row.description).Take();
}

std::optional<PinRow> ParsePin(std::string_view key, std::string_view value) {
  return Parse<PinRow>(RowKind::kPin, key, value, [](RowReader* name, RowReader* rest, PinRow* row) {
    row->space = name->Big<uint32_t>();
    if (name->left() > kPinNameMax || rest->left() > kRowDescriptionMax) return false;
    row->name = name->Text();
    row->description = rest->Text();
    return true;
  });
}

EncodedRow Encode(const ChunkRow& row) {
  KVIST_CHECK(!row.places.empty() && row.places.size() <= kShardsMax);
  RowWriter writer = BeginChunk(row.id);
  writer.Value()
      .Little(static_cast<uint8_t>((row.parent.has_value() ? kHasParent : 0) | (row.codec != Codec::kRaw ? kEncoded : 0)))
      .Little(row.hints)
      .Little(uint32_t{0});
  writer.Little(row.sequence).Little(row.units);
  if (row.codec != Codec::kRaw) writer.Little(static_cast<uint8_t>(row.codec));
  if (row.parent.has_value()) writer.Raw(row.parent->bytes);
  for (const Place& place : row.places) {
    KVIST_CHECK(static_cast<bool>(place));
    writer.Little(place.segment).Little(place.unit);
  }
  return writer.Take();
}

std::optional<ChunkRow> ParseChunk(std::string_view key, std::string_view value) {
  return Parse<ChunkRow>(RowKind::kChunk, key, value, [](RowReader* name, RowReader* rest, ChunkRow* row) {
    row->id.position = name->Big<uint32_t>();
    row->id.space = name->Big<uint32_t>();
    row->id.group = name->Big<uint16_t>();
    name->Raw(&row->id.key.bytes);
    const auto flags = rest->Little<uint8_t>();
    row->hints = rest->Little<uint16_t>();
    rest->Little<uint32_t>();
    row->sequence = rest->Little<uint64_t>();
    row->units = rest->Little<uint32_t>();
    if ((flags & kEncoded) != 0) {
      row->codec = static_cast<Codec>(rest->Little<uint8_t>());
      if (row->codec == Codec::kRaw) return false;
    }
    if ((flags & kHasParent) != 0) rest->Raw(&row->parent.emplace().bytes);
    const size_t shards = rest->left() / sizeof(Place);
    if ((flags & ~(kHasParent | kEncoded)) != 0 || shards == 0 || shards > kShardsMax) return false;
    row->places.resize(shards);
    for (Place& place : row->places) {
      place = rest->NextPlace();
      if (!place) return false;
    }
    return true;
  });
}

EncodedRow Encode(const UseRow& row) {
  KVIST_CHECK(row.chunks.size() <= kUsesPerRow && row.part < kUsePartsMax);
  RowWriter writer(RowKind::kUse);
  writer.Big(row.period).Big(row.part).Value().Little(row.written);
  for (const ChunkUse& use : row.chunks) writer.Little(use.space).Little(use.group).Raw(use.key.bytes);
  return writer.Take();
}

std::optional<UseRow> ParseUse(std::string_view key, std::string_view value) {
  return Parse<UseRow>(RowKind::kUse, key, value, [](RowReader* name, RowReader* rest, UseRow* row) {
    row->period = name->Big<uint32_t>();
    row->part = name->Big<uint32_t>();
    row->written = rest->Little<uint64_t>();
    if (row->part >= kUsePartsMax || rest->left() > kUsesPerRow * kUseBytes) return false;
    row->chunks.resize(rest->left() / kUseBytes);
    for (ChunkUse& use : row->chunks) {
      use.space = rest->Little<uint32_t>();
      use.group = rest->Little<uint16_t>();
      rest->Raw(&use.key.bytes);
    }
    return true;
  });
}

static_assert(sizeof(ChunkKey) == 32 && sizeof(Place) == 8, "the lengths that catalog_rows.h draws");

}  // namespace kvist::ssd
