#include "storage/codec/lossless.h"

#include <algorithm>
#include <cstring>

#include "storage/codec/twins.h"

namespace kvist::codec {
namespace {

// A base costs 8 bits for a channel's tokens and saves half a bit or more a value where channels differ.
constexpr uint32_t kTokensForBases = 64;

}  // namespace

LosslessCoder::LosslessCoder(const Shape& shape, const Kernels& kernels)
    : kernels_(kernels),
      shape_(shape),
      tokens_(shape.tokens),
      channels_(shape.channels),
      modelled_(shape.tokens >= kTokensForBases),
      bases_(channels_),
      coded_(tokens_ * channels_),
      kept_(tokens_ * channels_) {}

size_t LosslessCoder::Bound(const Shape& shape) { return sizeof(LosslessPart) + shape.channels + 2 * shape.matrix_values(); }

size_t LosslessCoder::Encode(uint64_t matrix, std::span<const std::byte> payload, uint8_t* part) {
  const RawValue* const rows = MatrixAt(shape_, payload, matrix);
  const uint64_t teller = TellerOf(shape_, matrix);
  const bool alike = !KindsOfRows(shape_, payload, teller).empty();
  Compressor& compressor = alike ? repeats_ : compressor_;
  std::fill(bases_.begin(), bases_.end(), uint8_t{0});
  if (modelled_) {
    for (size_t t = 0; t < tokens_; ++t) kernels_.max_exponents(rows + t * channels_, channels_, bases_.data());
  }
  uint8_t* at = part + sizeof(LosslessPart);
  if (modelled_) at = std::copy(bases_.begin(), bases_.end(), at);

  for (size_t t = 0; t < tokens_; ++t) {
    kernels_.split(rows + t * channels_, bases_.data(), channels_, coded_.data() + t * channels_,
                   kept_.data() + t * channels_);
  }
  LosslessPart head{};
  const size_t count = coded_.size();
  if (const auto length = compressor.Compress(coded_, {at, count})) {
    head.coded_bytes = static_cast<uint32_t>(*length);
  } else {
    head.coded_bytes = static_cast<uint32_t>(count);
    std::memcpy(at, coded_.data(), count);
  }
  std::memcpy(part, &head, sizeof head);
  at += head.coded_bytes;
  if ((alike && matrix == teller) || SeemsCompressible(kept_)) {
    if (const auto length = compressor.Compress(kept_, {at, count})) return static_cast<size_t>(at - part) + *length;
  }
  std::memcpy(at, kept_.data(), count);
  return static_cast<size_t>(at - part) + count;
}

bool LosslessCoder::Decode(uint64_t /*matrix*/, std::span<const uint8_t> part, std::byte* values) {
  const size_t count = coded_.size();
  const size_t before = sizeof(LosslessPart) + (modelled_ ? channels_ : 0);
  LosslessPart head{};
  if (part.size() < before) return false;
  std::memcpy(&head, part.data(), sizeof head);
  if (head.reserved != 0 || head.coded_bytes > count || head.coded_bytes > part.size() - before) return false;
  std::fill(bases_.begin(), bases_.end(), uint8_t{0});
  if (modelled_) std::memcpy(bases_.data(), part.data() + sizeof head, channels_);

  // Where bytes are as they were they are taken from where they lie.
  const std::span<const uint8_t> coded = part.subspan(before, head.coded_bytes);
  const std::span<const uint8_t> kept = part.subspan(before + head.coded_bytes);
  if (kept.size() > count) return false;
  const uint8_t* coded_at = coded.data();
  const uint8_t* kept_at = kept.data();
  if (coded.size() < count) {
    if (!decompressor_.Decompress(coded, coded_)) return false;
    coded_at = coded_.data();
  }
  if (kept.size() < count) {
    if (!decompressor_.Decompress(kept, kept_)) return false;
    kept_at = kept_.data();
  }
  RawValue* const rows = ValuesAt(values);
  for (size_t t = 0; t < tokens_; ++t) {
    kernels_.join(coded_at + t * channels_, kept_at + t * channels_, bases_.data(), channels_, rows + t * channels_);
  }
  return true;
}

}  // namespace kvist::codec
