#include "storage/codec/anchored.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "storage/base/check.h"
#include "storage/codec/step_table.h"
#include "storage/codec/twins.h"

namespace kvist::codec {
namespace {

// Of codes on each side of 0; 127 less what the next smaller step of the table adds, an 11th.
constexpr float kCodesMax = 110;
constexpr size_t kLookedAt = 4096;  // tokens
// What a channel's values are guessed by.
constexpr uint8_t kCentre = 0, kTwin = 1, kBefore = 0xff;

// Loops over a row's channels, which compilers vectorise.
struct Guesses {  // [channel]; each channel has at most one of the masks
  const uint8_t* centres;
  const uint8_t* before_mask;
  const uint8_t* twin_mask;
};
void Guess(const Guesses& by, const uint8_t* __restrict before, const uint8_t* twin, size_t channels,
           uint8_t* __restrict guesses) {
  const uint8_t* __restrict centres = by.centres;
  const uint8_t* __restrict before_mask = by.before_mask;
  const uint8_t* __restrict twin_mask = by.twin_mask;
  for (size_t c = 0; c < channels; ++c) {
    guesses[c] = static_cast<uint8_t>((before[c] & before_mask[c]) | (twin[c] & twin_mask[c]) |
                                      (centres[c] & ~(before_mask[c] | twin_mask[c])));
  }
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
      before_(channels_),
      twin_(channels_),
      kinds_(2 * tokens_),
      scales_(channels_) {}

size_t AnchoredCoder::Bound(const Shape& shape) {
  return sizeof(AnchoredPart) + 3 * size_t{shape.channels} + 2 * size_t{shape.tokens} + shape.matrix_values();
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

const uint8_t* AnchoredCoder::TwinOf(size_t token) const {
  if (twins_.empty() || twins_[token] == kNoTwin) return sides_.data() + channels_;  // the centres
  return codes_.data() + twins_[token] * channels_;
}

// Into sides_ the centres and what guesses are, by the codes of the first tokens.
void AnchoredCoder::ChooseGuesses() {
  uint8_t* const centres = sides_.data() + channels_;
  uint8_t* const guesses = centres + channels_;
  const size_t looked_at = std::min(tokens_, kLookedAt);
  sums_.assign(channels_, 0);
  for (size_t t = 0; t < looked_at; ++t) AddTo(sums_.data(), codes_.data() + t * channels_, channels_);
  for (size_t c = 0; c < channels_; ++c) {
    const double mean = static_cast<double>(sums_[c]) / static_cast<double>(looked_at);
    centres[c] = static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(mean)));
  }
  direct_.assign(channels_, 0);
  moved_.assign(channels_, 0);
  twinned_.assign(channels_, twins_.empty() ? INT32_MAX : 0);
  for (size_t t = 1; t < looked_at; ++t) {
    const uint8_t* const row = codes_.data() + t * channels_;
    AddDistances(direct_.data(), row, centres, channels_);
    AddDistances(moved_.data(), row, row - channels_, channels_);
    if (!twins_.empty()) AddDistances(twinned_.data(), row, TwinOf(t), channels_);
  }
  for (size_t c = 0; c < channels_; ++c) {
    guesses[c] = moved_[c] < direct_[c] ? kBefore : kCentre;
    if (twinned_[c] < std::min(moved_[c], direct_[c])) guesses[c] = kTwin;
  }
}

// Into before_ and twin_ what sides_ say; false when they say what nobody writes.
bool AnchoredCoder::ReadGuesses() {
  const uint8_t* const guesses = sides_.data() + 2 * channels_;
  for (size_t c = 0; c < channels_; ++c) {
    if (guesses[c] != kCentre && guesses[c] != kBefore && (guesses[c] != kTwin || twins_.empty())) return false;
    before_[c] = guesses[c] == kBefore ? 0xff : 0;
    twin_[c] = guesses[c] == kTwin ? 0xff : 0;
  }
  return true;
}

void AnchoredCoder::TellTwins(std::span<const Kind> kinds) {
  for (size_t t = 0; t < kinds.size(); ++t) {
    kinds_[t] = static_cast<uint8_t>(kinds[t]);
    kinds_[tokens_ + t] = static_cast<uint8_t>(kinds[t] >> 8);
  }
  KVIST_CHECK(FindTwins(kinds, &twins_));
}

size_t AnchoredCoder::Pack(std::span<const uint8_t> bytes, Compressor* compressor, uint8_t* at) {
  if (const auto length = compressor->Compress(bytes, {at, bytes.size()})) return *length;
  std::copy(bytes.begin(), bytes.end(), at);
  return bytes.size();
}

size_t AnchoredCoder::Encode(uint64_t matrix, std::span<const std::byte> payload, uint8_t* part) {
  const RawValue* const rows = MatrixAt(shape_, payload, matrix);
  AnchoredPart head{};
  head.top = ChooseSteps(matrix, rows);
  codes_.resize(tokens_ * channels_);
  for (size_t t = 0; t < tokens_; ++t) {
    kernels_.to_int8(rows + t * channels_, scales_.data(), channels_, codes_.data() + t * channels_);
  }
  TellTwins(KindsOfRows(shape_, payload, TellerOf(shape_, matrix)));
  ChooseGuesses();
  KVIST_CHECK(ReadGuesses());
  const uint8_t* const centres = sides_.data() + channels_;
  for (size_t t = 0; t < tokens_; ++t) {
    const uint8_t* const row = codes_.data() + t * channels_;
    const bool anchor = t % parameters_.anchor == 0;
    if (!anchor) Guess({centres, before_.data(), twin_.data()}, row - channels_, TwinOf(t), channels_, guesses_.data());
    Subtract(row, anchor ? centres : guesses_.data(), channels_, residuals_.data() + t * channels_);
  }

  uint8_t* at = part + sizeof head;
  head.side_bytes = static_cast<uint32_t>(Pack(sides_, &compressor_, at));
  at += head.side_bytes;
  const bool twins = std::any_of(twin_.begin(), twin_.end(), [](uint8_t mask) { return mask != 0; });
  if (twins) head.kind_bytes = static_cast<uint32_t>(Pack(kinds_, &repeats_, at));
  at += head.kind_bytes;
  std::memcpy(part, &head, sizeof head);
  const auto zeros = static_cast<size_t>(std::count(residuals_.begin(), residuals_.end(), 0));
  return static_cast<size_t>(at - part) + Pack(residuals_, zeros > residuals_.size() / 4 * 3 ? &repeats_ : &compressor_, at);
}

bool AnchoredCoder::Decode(uint64_t /*matrix*/, std::span<const uint8_t> part, std::byte* values) {
  AnchoredPart head{};
  if (part.size() < sizeof head) return false;
  std::memcpy(&head, part.data(), sizeof head);
  if (!StepTable::IsTop(head.top) || head.reserved != 0) return false;
  part = part.subspan(sizeof head);
  if (head.side_bytes > part.size() || !Unpack(part.first(head.side_bytes), &sides_)) return false;
  part = part.subspan(head.side_bytes);
  if (head.kind_bytes > part.size() || !ReadTwins(part.first(head.kind_bytes)) || !ReadGuesses()) return false;
  if (!Unpack(part.subspan(head.kind_bytes), &residuals_)) return false;

  const uint8_t* const centres = sides_.data() + channels_;
  const StepTable table(head.top);
  for (size_t c = 0; c < channels_; ++c) scales_[c] = table.step(sides_[c]);
  RawValue* const rows = ValuesAt(values);
  const size_t kept = twins_.empty() ? 2 : tokens_;  // rows of codes: this token's and the one's before, by turns, or all
  codes_.resize(kept * channels_);
  for (size_t t = 0; t < tokens_; ++t) {
    uint8_t* const row = codes_.data() + t % kept * channels_;
    const uint8_t* const before = codes_.data() + (t + kept - 1) % kept * channels_;
    const bool anchor = t % parameters_.anchor == 0;
    if (!anchor) Guess({centres, before_.data(), twin_.data()}, before, TwinOf(t), channels_, guesses_.data());
    Add(residuals_.data() + t * channels_, anchor ? centres : guesses_.data(), channels_, row);
    kernels_.from_any_int8(row, scales_.data(), channels_, rows + t * channels_);
  }
  return true;
}

bool AnchoredCoder::ReadTwins(std::span<const uint8_t> packed) {
  twins_.clear();
  if (packed.empty()) return true;
  if (!Unpack(packed, &kinds_)) return false;
  std::vector<Kind> kinds(tokens_);
  for (size_t t = 0; t < tokens_; ++t) kinds[t] = static_cast<Kind>(kinds_[t] | kinds_[tokens_ + t] << 8);
  return FindTwins(kinds, &twins_);
}

bool AnchoredCoder::Unpack(std::span<const uint8_t> packed, std::vector<uint8_t>* bytes) {
  if (packed.size() < bytes->size()) return decompressor_.Decompress(packed, *bytes);
  if (packed.size() > bytes->size()) return false;
  std::copy(packed.begin(), packed.end(), bytes->begin());
  return true;
}

}  // namespace kvist::codec
