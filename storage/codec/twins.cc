#include "storage/codec/twins.h"

#include <limits>

#include "absl/container/flat_hash_map.h"
#include "storage/base/xxh3.h"

namespace kvist::codec {

uint64_t TellerOf(const Shape& shape, uint64_t matrix) {
  if (shape.keys >= shape.segments) return matrix;
  const uint64_t of_layer = uint64_t{shape.segments} * shape.tiles;
  const uint64_t of_page = of_layer * shape.layers;
  return matrix - matrix % of_page + uint64_t{shape.keys} * shape.tiles + matrix % shape.tiles;
}

std::vector<Kind> KindsOfRows(const Shape& shape, std::span<const std::byte> payload, uint64_t matrix) {
  const size_t row_bytes = shape.channels * BytesOf(shape.element);
  const std::byte* const rows = payload.data() + matrix * shape.matrix_bytes().value;
  // Two kinds that are taken for one make a bad guess, nothing worse.
  absl::flat_hash_map<uint64_t, Kind> seen;
  std::vector<Kind> kinds;
  kinds.reserve(shape.tokens);
  for (uint32_t t = 0; t < shape.tokens; ++t) {
    const auto fresh = static_cast<Kind>(seen.size());
    kinds.push_back(seen.try_emplace(XXH3_64bits(rows + t * row_bytes, row_bytes), fresh).first->second);
    if (seen.size() > std::numeric_limits<Kind>::max() || 8 * seen.size() > 7 * uint64_t{shape.tokens}) return {};
  }
  return kinds;
}

bool FindTwins(std::span<const Kind> kinds, std::vector<uint32_t>* twins) {
  std::vector<uint32_t> last;  // [kind]
  twins->clear();
  for (uint32_t t = 0; t < kinds.size(); ++t) {
    const Kind kind = kinds[t];
    if (kind > last.size()) return false;
    if (kind == last.size()) last.push_back(kNoTwin);
    twins->push_back(last[kind]);
    last[kind] = t;
  }
  return true;
}

}  // namespace kvist::codec
