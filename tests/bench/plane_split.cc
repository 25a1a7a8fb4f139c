#include "tests/bench/plane_split.h"

#include <emmintrin.h>
#include <zstd.h>

#include <algorithm>

#include "storage/base/check.h"

namespace kvist::bench {
namespace {

__m128i Load(const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
void Store(std::byte* to, __m128i bytes) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes); }

void Split(std::span<const std::byte> values, std::byte* low_plane, std::byte* high_plane) {
  const __m128i low = _mm_set1_epi16(0xff);
  for (size_t i = 0; i < values.size(); i += PlaneSplit::kUnit) {
    const __m128i a = Load(values.data() + i), b = Load(values.data() + i + 16);
    Store(low_plane + i / 2, _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low)));
    Store(high_plane + i / 2, _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8)));
  }
}

void Join(const std::byte* low_plane, const std::byte* high_plane, std::span<std::byte> values) {
  for (size_t i = 0; i < values.size(); i += PlaneSplit::kUnit) {
    const __m128i a = Load(low_plane + i / 2), b = Load(high_plane + i / 2);
    Store(values.data() + i, _mm_unpacklo_epi8(a, b));
    Store(values.data() + i + 16, _mm_unpackhi_epi8(a, b));
  }
}

}  // namespace

struct PlaneSplit::Contexts {
  ZSTD_CCtx* compress = ZSTD_createCCtx();
  ZSTD_DCtx* decompress = ZSTD_createDCtx();
  ~Contexts() {
    ZSTD_freeCCtx(compress);
    ZSTD_freeDCtx(decompress);
  }
};

PlaneSplit::PlaneSplit(const Options& options)
    : options_(options),
      plane_bytes_(options.block_bytes / 2),
      room_(ZSTD_compressBound(plane_bytes_)),
      contexts_(std::make_unique<Contexts>()) {
  KVIST_CHECK(options.block_bytes > 0 && options.block_bytes % kUnit == 0);
  KVIST_CHECK(options.payload_bytes % options.block_bytes == 0);
  KVIST_CHECK(contexts_->compress != nullptr && contexts_->decompress != nullptr);
  for (auto& plane : planes_) plane.resize(plane_bytes_);
  blocks_.resize(options.payload_bytes / options.block_bytes);
  encoded_.resize(2 * blocks_.size() * room_);
}

PlaneSplit::~PlaneSplit() = default;

bool PlaneSplit::LowShrinks(std::span<const std::byte> block) {
  constexpr size_t kSamples = 4096;
  const size_t every = std::max<size_t>(plane_bytes_ / kSamples, 1);
  std::byte sample[kSamples], packed[ZSTD_COMPRESSBOUND(kSamples)];
  size_t count = 0;
  for (size_t i = 0; i < plane_bytes_ && count < kSamples; i += every) sample[count++] = block[2 * i];
  const size_t length = ZSTD_compressCCtx(contexts_->compress, packed, sizeof packed, sample, count, 1);
  KVIST_CHECK(ZSTD_isError(length) == 0);
  return length * 20 < count * 19;
}

size_t PlaneSplit::Encode(std::span<const std::byte> payload) {
  KVIST_CHECK(payload.size() == options_.payload_bytes);
  size_t all = 0;
  for (size_t number = 0; number < blocks_.size(); ++number) {
    Block& block = blocks_[number];
    const std::span<const std::byte> values = payload.subspan(number * options_.block_bytes, options_.block_bytes);
    block.low_as_it_is = options_.samples_low && !LowShrinks(values);
    Split(values, block.low_as_it_is ? EncodedAt(number, 0) : planes_[0].data(), planes_[1].data());
    for (int plane = 0; plane < 2; ++plane) {
      size_t& length = block.lengths[plane];
      length = plane == 0 && block.low_as_it_is ? plane_bytes_
                                                : ZSTD_compressCCtx(contexts_->compress, EncodedAt(number, plane), room_,
                                                                    planes_[plane].data(), plane_bytes_, 1);
      KVIST_CHECK(ZSTD_isError(length) == 0);
      all += length;
    }
  }
  return all;
}

bool PlaneSplit::Decode(std::span<std::byte> payload) {
  KVIST_CHECK(payload.size() == options_.payload_bytes);
  for (size_t number = 0; number < blocks_.size(); ++number) {
    const Block& block = blocks_[number];
    for (int plane = block.low_as_it_is ? 1 : 0; plane < 2; ++plane) {
      const size_t length = ZSTD_decompressDCtx(contexts_->decompress, planes_[plane].data(), plane_bytes_,
                                                EncodedAt(number, plane), block.lengths[plane]);
      if (length != plane_bytes_) return false;
    }
    Join(block.low_as_it_is ? EncodedAt(number, 0) : planes_[0].data(), planes_[1].data(),
         payload.subspan(number * options_.block_bytes, options_.block_bytes));
  }
  return true;
}

}  // namespace kvist::bench
