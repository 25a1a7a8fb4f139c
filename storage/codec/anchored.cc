#include "storage/codec/anchored.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "storage/codec/step_table.h"

namespace kvist::codec {
namespace {

// Of codes on each side of 0; 127 less what the next smaller step of the table adds, an 11th.
constexpr float kCodesMax = 110;
constexpr uint8_t kDeltas = 0xff;   // a mask; 0 where there are none
constexpr size_t kLookedAt = 4096;  // tokens

// Loops over a row's channels, which compilers vectorise.
void Guess(const uint8_t* __restrict before, const uint8_t* __restrict centres, const uint8_t* __restrict deltas,
           size_t channels, uint8_t* __restrict guesses) {
  for (size_t c = 0; c < channels; ++c)
    guesses[c] = static_cast<uint8_t>((before[c] & deltas[c]) | (centres[c] & ~deltas[c]));
}
void Subtract(const uint8_t* __restrict codes, const uint8_t* __restrict guesses, size_t channels,
              uint8_t* __restrict residuals) {
  for (size_t c = 0; c < channels; ++c) residuals[c] = static_cast<uint8_t>(codes[c] - guesses[c]);
}
void Add(const uint8_t* __restrict residuals, const uint8_t* __restrict guesses, size_t channels,
         uint8_t* __restrict codes) {
  for (size_t c = 0; c < channels; ++c) codes[c] = static_cast<uint8_t>(residuals[c] + guesses[c]);
}
void AddTo(int32_t* __restrict sums, const uint8_t* __restrict codes, size_t channels) {
  for (size_t c = 0; c < channels; ++c) sums[c] += static_cast<int8_t>(codes[c]);
}
void AddDistances(int32_t* __restrict sums, const uint8_t* __restrict a, const uint8_t* __restrict b, size_t channels) {
  for (size_t c = 0; c < channels; ++c) sums[c] += std::abs(static_cast<int8_t>(static_cast<uint8_t>(a[c] - b[c])));
}

}  // namespace

AnchoredCoder::AnchoredCoder(const Shape& shape, const Parameters& parameters, const Kernels& kernels)
    : kernels_(kernels),
      shape_(shape),
      parameters_(parameters),
      tokens_(shape.tokens),
      channels_(shape.channels),
      residuals_(tokens_ * channels_),
      sides_(3 * channels_),
      guesses_(channels_),
      scales_(channels_) {}

size_t AnchoredCoder::Bound(const Shape& shape) {
  return sizeof(AnchoredPart) + 3 * size_t{shape.channels} + shape.matrix_values();
}

// Into sides_ the codes of the channels' steps, into scales_ the inverses; gives the largest step.
float AnchoredCoder::ChooseSteps(uint64_t matrix, const RawValue* rows) {
  squares_.assign(channels_, 0);
  largest_.assign(channels_, 0);
  for (size_t t = 0; t < tokens_; ++t) {
    kernels_.add_squares(rows + t * channels_, channels_, squares_.data());
    kernels_.max_magnitudes(rows + t * channels_, channels_, largest_.data());
  }
  double sizes = 0, squares = 0;
  for (size_t c = 0; c < channels_; ++c) {
    const float largest = shape_.element == Element::kBf16 ? Bf16::ToFloat(largest_[c]) : Fp16::ToFloat(largest_[c]);
    double size = std::sqrt(double{squares_[c]} / static_cast<double>(tokens_));
    if (!std::isfinite(squares_[c]) || squares_[c] < FLT_MIN) size = largest;  // a square that no float holds
    sizes += size;
    squares += size * size;
    scales_[c] = static_cast<float>(std::sqrt(size));
  }
  // An even error in a step is its 12th, squared: the mean of step * step / 12 is to be error * error * the mean square.
  const uint64_t third = uint64_t{shape_.LayerOf(matrix)} * 3 / shape_.layers;
  const double error = (shape_.IsKey(matrix) ? parameters_.key_error : parameters_.other_error)[third] / 10000.0;
  const double factor = sizes > 0 ? error * std::sqrt(12 * squares / sizes) : 0;
  float top = 0;
  for (size_t c = 0; c < channels_; ++c) {
    const float largest = shape_.element == Element::kBf16 ? Bf16::ToFloat(largest_[c]) : Fp16::ToFloat(largest_[c]);
    scales_[c] = std::max(static_cast<float>(std::min<double>(scales_[c] * factor, Bf16::kMax)), largest / kCodesMax);
    top = std::max(top, scales_[c]);
  }
  const StepTable table(top);
  for (size_t c = 0; c < channels_; ++c) {
    sides_[c] = table.AtMost(scales_[c]);
    scales_[c] = table.inverse(sides_[c]);
  }
  return top;
}

// Into sides_ the centres and whether there are deltas, by the codes of the first tokens.
void AnchoredCoder::ChooseGuesses() {
  uint8_t* const centres = sides_.data() + channels_;
  uint8_t* const deltas = centres + channels_;
  const size_t looked_at = std::min(tokens_, kLookedAt);
  sums_.assign(channels_, 0);
  for (size_t t = 0; t < looked_at; ++t) AddTo(sums_.data(), codes_.data() + t * channels_, channels_);
  for (size_t c = 0; c < channels_; ++c) {
    const double mean = static_cast<double>(sums_[c]) / static_cast<double>(looked_at);
    centres[c] = static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(mean)));
  }
  direct_.assign(channels_, 0);
  moved_.assign(channels_, 0);
  for (size_t t = 1; t < looked_at; ++t) {
    const uint8_t* const row = codes_.data() + t * channels_;
    AddDistances(direct_.data(), row, centres, channels_);
    AddDistances(moved_.data(), row, row - channels_, channels_);
  }
  for (size_t c = 0; c < channels_; ++c) deltas[c] = moved_[c] < direct_[c] ? kDeltas : 0;
}

size_t AnchoredCoder::Encode(uint64_t matrix, const std::byte* values, uint8_t* part) {
  const RawValue* const rows = ValuesAt(values);
  AnchoredPart head{};
  head.top = ChooseSteps(matrix, rows);
  codes_.resize(tokens_ * channels_);
  for (size_t t = 0; t < tokens_; ++t) {
    kernels_.to_int8(rows + t * channels_, scales_.data(), channels_, codes_.data() + t * channels_);
  }
  ChooseGuesses();
  const uint8_t* const centres = sides_.data() + channels_;
  const uint8_t* const deltas = centres + channels_;
  for (size_t t = 0; t < tokens_; ++t) {
    const uint8_t* const row = codes_.data() + t * channels_;
    const bool anchor = t % parameters_.anchor == 0;
    if (!anchor) Guess(row - channels_, centres, deltas, channels_, guesses_.data());
    Subtract(row, anchor ? centres : guesses_.data(), channels_, residuals_.data() + t * channels_);
  }

  uint8_t* at = part + sizeof head;
  if (const auto length = compressor_.Compress(sides_, {at, sides_.size()})) {
    head.side_bytes = static_cast<uint32_t>(*length);
  } else {
    head.side_bytes = static_cast<uint32_t>(sides_.size());
    std::memcpy(at, sides_.data(), sides_.size());
  }
  std::memcpy(part, &head, sizeof head);
  at += head.side_bytes;
  size_t residuals = residuals_.size();
  if (const auto length = compressor_.Compress(residuals_, {at, residuals})) {
    residuals = *length;
  } else {
    std::memcpy(at, residuals_.data(), residuals);
  }
  return static_cast<size_t>(at - part) + residuals;
}

bool AnchoredCoder::Decode(uint64_t /*matrix*/, std::span<const uint8_t> part, std::byte* values) {
  AnchoredPart head{};
  if (part.size() < sizeof head) return false;
  std::memcpy(&head, part.data(), sizeof head);
  if (!StepTable::IsTop(head.top) || head.reserved != 0) return false;
  if (head.side_bytes > sides_.size() || head.side_bytes > part.size() - sizeof head) return false;
  if (!Unpack(part.subspan(sizeof head, head.side_bytes), &sides_)) return false;
  if (!Unpack(part.subspan(sizeof head + head.side_bytes), &residuals_)) return false;

  const uint8_t* const centres = sides_.data() + channels_;
  const uint8_t* const deltas = centres + channels_;
  for (size_t c = 0; c < channels_; ++c) {
    if (deltas[c] != 0 && deltas[c] != kDeltas) return false;
  }
  const StepTable table(head.top);
  for (size_t c = 0; c < channels_; ++c) scales_[c] = table.step(sides_[c]);
  RawValue* const rows = ValuesAt(values);
  codes_.resize(2 * channels_);  // this token's and the one's before, by turns
  for (size_t t = 0; t < tokens_; ++t) {
    uint8_t* const row = codes_.data() + t % 2 * channels_;
    const uint8_t* const before = codes_.data() + (t + 1) % 2 * channels_;
    const bool anchor = t % parameters_.anchor == 0;
    if (!anchor) Guess(before, centres, deltas, channels_, guesses_.data());
    Add(residuals_.data() + t * channels_, anchor ? centres : guesses_.data(), channels_, row);
    kernels_.from_any_int8(row, scales_.data(), channels_, rows + t * channels_);
  }
  return true;
}

bool AnchoredCoder::Unpack(std::span<const uint8_t> packed, std::vector<uint8_t>* bytes) {
  if (packed.size() < bytes->size()) return decompressor_.Decompress(packed, *bytes);
  if (packed.size() > bytes->size()) return false;
  std::copy(packed.begin(), packed.end(), bytes->begin());
  return true;
}

}  // namespace kvist::codec
