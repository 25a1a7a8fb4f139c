#include "storage/codec/shape.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvist::codec {

absl::Status Shape::Validate() const {
  if (element > Element::kFp16) return absl::InvalidArgumentError("shape.element is none that is known");
  const std::pair<const char*, uint32_t> fields[] = {{"pages", pages}, {"layers", layers}, {"segments", segments},
                                                     {"tiles", tiles}, {"tokens", tokens}, {"channels", channels}};
  for (const auto& [name, value] : fields) {
    if (value == 0) return absl::InvalidArgumentError(absl::StrCat("shape.", name, " is 0, must be at least 1"));
  }
  if (keys > segments)
    return absl::InvalidArgumentError(absl::StrCat("shape.keys is ", keys, ", must be at most shape.segments, ", segments));
  if (matrix_values() > kMatrixBytesMax.value / BytesOf(element))
    return absl::InvalidArgumentError(absl::StrCat("shape: a matrix of ", tokens, " tokens by ", channels,
                                                   " channels has more than ", kMatrixBytesMax.value, " bytes"));
  // One factor at a time: each has 32 bits and what is before it at most 22.
  uint64_t count = 1;
  for (const uint32_t factor : {pages, layers, segments, tiles}) {
    count *= factor;
    if (count > kMatricesMax)
      return absl::InvalidArgumentError(absl::StrCat("shape: pages * layers * segments * tiles is above ", kMatricesMax));
  }
  if (count * matrix_bytes().value > kShardBytesMax.value)
    return absl::InvalidArgumentError(absl::StrCat("shape: the shard has more than ", kShardBytesMax.value, " bytes"));
  return absl::OkStatus();
}

}  // namespace kvist::codec
