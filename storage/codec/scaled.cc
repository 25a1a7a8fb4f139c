#include "storage/codec/scaled.h"

#include <algorithm>
#include <cstring>

#include "storage/codec/step_table.h"

namespace kvist::codec {

ScaledCoder::ScaledCoder(Method method, const Shape& shape, uint32_t group, const Kernels& kernels)
    : kernels_(kernels),
      shape_(shape),
      keys_(shape, group, true),
      others_(shape, group, false),
      range_(method == Method::kInt8 ? 127.0F : E4m3::kMax),
      to_bytes_(method == Method::kInt8 ? kernels.to_int8 : kernels.to_fp8),
      from_bytes_(method == Method::kInt8 ? kernels.from_int8 : kernels.from_fp8),
      from_even_bytes_(method == Method::kInt8 ? kernels.from_even_int8 : kernels.from_even_fp8),
      scales_(shape.channels) {}

size_t ScaledCoder::Bound(const Shape& shape, uint32_t group) {
  const size_t scales = std::max(ScaleGrid(shape, group, true).scales(), ScaleGrid(shape, group, false).scales());
  return sizeof(float) + scales + shape.matrix_values();
}

size_t ScaledCoder::Encode(uint64_t matrix, std::span<const std::byte> payload, uint8_t* part) {
  const bool key = shape_.IsKey(matrix);
  const ScaleGrid& grid = key ? keys_ : others_;
  const RawValue* const rows = MatrixAt(shape_, payload, matrix);
  magnitudes_.assign(grid.scales(), 0);
  for (size_t line = 0; line < grid.lines(); ++line) {
    uint16_t* const found = magnitudes_.data() + line * grid.cells();
    for (size_t t = grid.FirstToken(line); t < grid.EndToken(line); ++t) {
      const RawValue* const row = rows + t * grid.channels;
      if (key) {
        kernels_.max_magnitudes(row, grid.channels, found);
        continue;
      }
      for (size_t cell = 0; cell < grid.cells(); ++cell) {
        const size_t first = grid.FirstChannel(cell);
        found[cell] = kernels_.max_magnitude(row + first, grid.EndChannel(cell) - first);
      }
    }
  }
  const auto wanted = [&](uint16_t magnitude) {
    return (shape_.element == Element::kBf16 ? Bf16::ToFloat(magnitude) : Fp16::ToFloat(magnitude)) / range_;
  };
  const StepTable table(wanted(*std::max_element(magnitudes_.begin(), magnitudes_.end())));
  const float top = table.top();
  std::memcpy(part, &top, sizeof top);
  uint8_t* const codes = part + sizeof top;
  for (size_t i = 0; i < grid.scales(); ++i) codes[i] = table.AtLeast(wanted(magnitudes_[i]));

  uint8_t* out = codes + grid.scales();
  for (size_t line = 0; line < grid.lines(); ++line) {
    const uint8_t* const line_codes = codes + line * grid.cells();
    grid.Spread(scales_.data(), [&](size_t cell) { return table.inverse(line_codes[cell]); });
    for (size_t t = grid.FirstToken(line); t < grid.EndToken(line); ++t, out += grid.channels) {
      to_bytes_(rows + t * grid.channels, scales_.data(), grid.channels, out);
    }
  }
  return static_cast<size_t>(out - part);
}

bool ScaledCoder::Decode(uint64_t matrix, std::span<const uint8_t> part, std::byte* values) {
  const bool key = shape_.IsKey(matrix);
  const ScaleGrid& grid = key ? keys_ : others_;
  float top = 0;
  if (part.size() != sizeof top + grid.scales() + shape_.matrix_values()) return false;
  std::memcpy(&top, part.data(), sizeof top);
  if (!StepTable::IsTop(top)) return false;
  const StepTable table(top);
  const uint8_t* codes = part.data() + sizeof top;
  const uint8_t* in = codes + grid.scales();
  RawValue* const rows = ValuesAt(values);
  for (size_t line = 0; line < grid.lines(); ++line, codes += grid.cells()) {
    if (key) grid.Spread(scales_.data(), [&](size_t cell) { return table.step(codes[cell]); });
    for (size_t t = grid.FirstToken(line); t < grid.EndToken(line); ++t, in += grid.channels) {
      RawValue* const row = rows + t * grid.channels;
      if (key) {
        from_bytes_(in, scales_.data(), grid.channels, row);
        continue;
      }
      for (size_t cell = 0; cell < grid.cells(); ++cell) {
        const size_t first = grid.FirstChannel(cell);
        from_even_bytes_(in + first, table.step(codes[cell]), grid.EndChannel(cell) - first, row + first);
      }
    }
  }
  return true;
}

}  // namespace kvist::codec
