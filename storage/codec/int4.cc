#include "storage/codec/int4.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "storage/codec/step_table.h"

namespace kvist::codec {
namespace {

struct Int4Part {
  float top;
  uint32_t outliers;
};
static_assert(sizeof(Int4Part) == 8);
constexpr size_t kOutlierBytes = sizeof(uint32_t) + sizeof(uint16_t);
constexpr size_t kWidestLookedAt = 8;  // groups for each outlier that there may be
size_t OutliersMax(const Shape& shape, const Parameters& parameters) {
  return shape.matrix_values() * parameters.outliers / 65536;
}

// Bits of finite values as integers in the values' order, and back. -0 is below 0.
KVIST_CODEC_INLINE int16_t InOrder(uint16_t bits) {
  const auto value = static_cast<int16_t>(bits);
  return static_cast<int16_t>(value ^ ((value >> 15) & 0x7fff));
}

// Loops that compilers vectorise: over the channels of a row, and over the values of a group.
void AddToEnds(const RawValue* __restrict row, size_t channels, int16_t* __restrict low, int16_t* __restrict high) {
  for (size_t c = 0; c < channels; ++c) {
    const int16_t value = InOrder(row[c]);
    low[c] = value < low[c] ? value : low[c];
    high[c] = value > high[c] ? value : high[c];
  }
}
void EndsOf(const RawValue* __restrict values, size_t count, int16_t* low, int16_t* high) {
  int16_t least = INT16_MAX, most = INT16_MIN;
  for (size_t i = 0; i < count; ++i) {
    const int16_t value = InOrder(values[i]);
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  *low = least;
  *high = most;
}

}  // namespace

Int4Coder::Int4Coder(const Shape& shape, const Parameters& parameters, const Kernels& kernels)
    : kernels_(kernels),
      shape_(shape),
      keys_(shape, parameters.group, true),
      others_(shape, parameters.group, false),
      outliers_max_(OutliersMax(shape, parameters)),
      scales_(shape.channels),
      zeros_(shape.channels) {}

size_t Int4Coder::Bound(const Shape& shape, const Parameters& parameters) {
  const uint32_t group = parameters.group;
  const size_t scales = std::max(ScaleGrid(shape, group, true).scales(), ScaleGrid(shape, group, false).scales());
  const size_t packed = size_t{shape.tokens} * ((size_t{shape.channels} + 1) / 2);
  return sizeof(Int4Part) + 2 * scales + packed + OutliersMax(shape, parameters) * kOutlierBytes;
}

float Int4Coder::ValueOf(int16_t ordered) const {
  const auto bits = static_cast<uint16_t>(ordered ^ ((ordered >> 15) & 0x7fff));
  return shape_.element == Element::kBf16 ? Bf16::ToFloat(bits) : Fp16::ToFloat(bits);
}

void Int4Coder::FindEnds(const ScaleGrid& grid, bool key, const RawValue* rows) {
  ends_.resize(grid.scales());
  for (size_t line = 0; line < grid.lines(); ++line) {
    Ends* const found = ends_.data() + line * grid.cells();
    if (!key) {
      for (size_t cell = 0; cell < grid.cells(); ++cell) {
        const size_t first = grid.FirstChannel(cell);
        EndsOf(rows + line * grid.channels + first, grid.EndChannel(cell) - first, &found[cell].low, &found[cell].high);
      }
      continue;
    }
    low_.assign(grid.channels, INT16_MAX);
    high_.assign(grid.channels, INT16_MIN);
    for (size_t t = grid.FirstToken(line); t < grid.EndToken(line); ++t) {
      AddToEnds(rows + t * grid.channels, grid.channels, low_.data(), high_.data());
    }
    for (size_t c = 0; c < grid.channels; ++c) found[c] = {low_[c], high_[c]};
  }
}

// Where the range shrinks most, squared because errors are: one value of a group, as many groups as there may be. A group can't gain more than
// its range, so only the widest are looked at.
void Int4Coder::TakeOutliers(const ScaleGrid& grid, const RawValue* rows) {
  outliers_.clear();
  gains_.clear();
  if (outliers_max_ == 0) return;
  for (size_t i = 0; i < ends_.size(); ++i) {
    const double range = double{ValueOf(ends_[i].high)} - ValueOf(ends_[i].low);
    gains_.push_back({range, i, {}, 0});
  }
  KeepLargest(kWidestLookedAt * outliers_max_);
  for (Gain& gain : gains_) gain = GainOf(grid, rows, gain.group);
  KeepLargest(outliers_max_);
  for (const Gain& gain : gains_) {
    if (gain.gained <= 0) continue;
    ends_[gain.group] = gain.without;
    outliers_.push_back(gain.position);
  }
  std::sort(outliers_.begin(), outliers_.end());
}

void Int4Coder::KeepLargest(size_t count) {
  if (gains_.size() <= count) return;
  const auto more = [](const Gain& a, const Gain& b) {
    return a.gained != b.gained ? a.gained > b.gained : a.group < b.group;
  };
  std::nth_element(gains_.begin(), gains_.begin() + static_cast<ptrdiff_t>(count), gains_.end(), more);
  gains_.resize(count);
}

Int4Coder::Gain Int4Coder::GainOf(const ScaleGrid& grid, const RawValue* rows, size_t group) const {
  const Ends ends = ends_[group];
  int16_t second_low = ends.high, second_high = ends.low;  // without one smallest, without one largest
  size_t low_at = 0, high_at = 0, lows = 0, highs = 0;
  const size_t line = group / grid.cells(), cell = group % grid.cells();
  for (size_t t = grid.FirstToken(line); t < grid.EndToken(line); ++t) {
    for (size_t c = grid.FirstChannel(cell); c < grid.EndChannel(cell); ++c) {
      const size_t position = t * grid.channels + c;
      const int16_t value = InOrder(rows[position]);
      if (value == ends.low) {
        low_at = position;
        if (++lows > 1) second_low = value;
      } else {
        second_low = std::min(second_low, value);
      }
      if (value == ends.high) {
        high_at = position;
        if (++highs > 1) second_high = value;
      } else {
        second_high = std::max(second_high, value);
      }
    }
  }
  const double low = ValueOf(ends.low), high = ValueOf(ends.high);
  const double without_low = high - ValueOf(second_low), without_high = ValueOf(second_high) - low;
  const double without = std::min(without_low, without_high), range = high - low;
  const double gained = range * range - without * without;
  if (without_high < without_low) return {gained, group, {ends.low, second_high}, static_cast<uint32_t>(high_at)};
  return {gained, group, {second_low, ends.high}, static_cast<uint32_t>(low_at)};
}

float Int4Coder::WantedStep(const Ends& ends) const {
  const float low = ValueOf(ends.low), high = ValueOf(ends.high);
  // Halves, so that the range of the largest floats is one, too; 126: the zero point is rounded, and has to stay within int8.
  const float range = (high / 2 - low / 2) / 7.5F;
  return std::max(range, std::max(std::abs(low), std::abs(high)) / 126);
}

size_t Int4Coder::Encode(uint64_t matrix, std::span<const std::byte> payload, uint8_t* part) {
  const bool key = shape_.IsKey(matrix);
  const ScaleGrid& grid = key ? keys_ : others_;
  const RawValue* const rows = MatrixAt(shape_, payload, matrix);
  FindEnds(grid, key, rows);
  TakeOutliers(grid, rows);

  float top = 0;
  for (const Ends& ends : ends_) top = std::max(top, WantedStep(ends));
  const StepTable table(top);
  const Int4Part head{top, static_cast<uint32_t>(outliers_.size())};
  std::memcpy(part, &head, sizeof head);
  uint8_t* const codes = part + sizeof head;
  uint8_t* const zeros = codes + grid.scales();
  for (size_t i = 0; i < ends_.size(); ++i) {
    codes[i] = table.AtLeast(WantedStep(ends_[i]));
    zeros[i] = static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(ValueOf(ends_[i].low) * table.inverse(codes[i]))));
  }

  const size_t packed_row = (grid.channels + 1) / 2;
  uint8_t* out = zeros + grid.scales();
  for (size_t line = 0; line < grid.lines(); ++line) {
    const size_t first = line * grid.cells();
    grid.Spread(scales_.data(), [&](size_t cell) { return table.inverse(codes[first + cell]); });
    grid.Spread(zeros_.data(), [&](size_t cell) { return static_cast<int8_t>(zeros[first + cell]); });
    for (size_t t = grid.FirstToken(line); t < grid.EndToken(line); ++t, out += packed_row) {
      kernels_.to_int4(rows + t * grid.channels, scales_.data(), zeros_.data(), grid.channels, out);
    }
  }
  for (const uint32_t position : outliers_) {
    std::memcpy(out, &position, sizeof position);
    out += sizeof position;
  }
  for (const uint32_t position : outliers_) {
    const uint16_t value = rows[position];
    std::memcpy(out, &value, sizeof value);
    out += sizeof value;
  }
  return static_cast<size_t>(out - part);
}

bool Int4Coder::Decode(uint64_t matrix, std::span<const uint8_t> part, std::byte* values) {
  const ScaleGrid& grid = shape_.IsKey(matrix) ? keys_ : others_;
  const size_t packed_row = (grid.channels + 1) / 2;
  Int4Part head{};
  if (part.size() < sizeof head) return false;
  std::memcpy(&head, part.data(), sizeof head);
  const size_t without = sizeof head + 2 * grid.scales() + grid.tokens * packed_row;
  if (!StepTable::IsTop(head.top) || head.outliers > outliers_max_) return false;
  if (part.size() != without + head.outliers * kOutlierBytes) return false;

  const StepTable table(head.top);
  const uint8_t* const codes = part.data() + sizeof head;
  const uint8_t* const zeros = codes + grid.scales();
  const uint8_t* in = zeros + grid.scales();
  RawValue* const rows = ValuesAt(values);
  for (size_t line = 0; line < grid.lines(); ++line) {
    const size_t first = line * grid.cells();
    grid.Spread(scales_.data(), [&](size_t cell) { return table.step(codes[first + cell]); });
    grid.Spread(zeros_.data(), [&](size_t cell) { return static_cast<int8_t>(zeros[first + cell]); });
    for (size_t t = grid.FirstToken(line); t < grid.EndToken(line); ++t, in += packed_row) {
      kernels_.from_int4(in, scales_.data(), zeros_.data(), grid.channels, rows + t * grid.channels);
    }
  }
  const uint8_t* const exact = in + head.outliers * sizeof(uint32_t);
  uint64_t next = 0;  // the least position that may come
  for (size_t i = 0; i < head.outliers; ++i) {
    uint32_t position = 0;
    uint16_t value = 0;
    std::memcpy(&position, in + i * sizeof position, sizeof position);
    std::memcpy(&value, exact + i * sizeof value, sizeof value);
    if (position < next || position >= shape_.matrix_values()) return false;
    next = uint64_t{position} + 1;
    rows[position] = value;
  }
  return true;
}

}  // namespace kvist::codec
