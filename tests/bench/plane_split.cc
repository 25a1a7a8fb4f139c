#include "tests/bench/plane_split.h"

#include <emmintrin.h>
#include <zstd.h>

#include "storage/base/check.h"

namespace kvist::bench {
namespace {

__m128i Load(const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
void Store(std::byte* to, __m128i bytes) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes); }

}  // namespace

struct PlaneSplit::Contexts {
  ZSTD_CCtx* compress = ZSTD_createCCtx();
  ZSTD_DCtx* decompress = ZSTD_createDCtx();
  ~Contexts() {
    ZSTD_freeCCtx(compress);
    ZSTD_freeDCtx(decompress);
  }
};

PlaneSplit::PlaneSplit(size_t payload_bytes) : contexts_(std::make_unique<Contexts>()) {
  KVIST_CHECK(payload_bytes % kUnit == 0 && contexts_->compress != nullptr && contexts_->decompress != nullptr);
  for (auto& plane : planes_) plane.resize(payload_bytes / 2);
  for (auto& encoded : encoded_) encoded.resize(ZSTD_compressBound(payload_bytes / 2));
}

PlaneSplit::~PlaneSplit() = default;

size_t PlaneSplit::Encode(std::span<const std::byte> payload) {
  const __m128i low = _mm_set1_epi16(0xff);
  for (size_t i = 0; i < payload.size(); i += kUnit) {
    const __m128i a = Load(payload.data() + i), b = Load(payload.data() + i + 16);
    Store(planes_[0].data() + i / 2, _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low)));
    Store(planes_[1].data() + i / 2, _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8)));
  }
  for (int plane = 0; plane < 2; ++plane) {
    lengths_[plane] = ZSTD_compressCCtx(contexts_->compress, encoded_[plane].data(), encoded_[plane].size(),
                                        planes_[plane].data(), planes_[plane].size(), 1);
    KVIST_CHECK(ZSTD_isError(lengths_[plane]) == 0);
  }
  return lengths_[0] + lengths_[1];
}

bool PlaneSplit::Decode(std::span<std::byte> payload) {
  for (int plane = 0; plane < 2; ++plane) {
    const size_t length = ZSTD_decompressDCtx(contexts_->decompress, planes_[plane].data(), planes_[plane].size(),
                                              encoded_[plane].data(), lengths_[plane]);
    if (length != planes_[plane].size()) return false;
  }
  for (size_t i = 0; i < payload.size(); i += kUnit) {
    const __m128i a = Load(planes_[0].data() + i / 2), b = Load(planes_[1].data() + i / 2);
    Store(payload.data() + i, _mm_unpacklo_epi8(a, b));
    Store(payload.data() + i + 16, _mm_unpackhi_epi8(a, b));
  }
  return true;
}

}  // namespace kvist::bench
