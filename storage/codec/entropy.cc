#include "storage/codec/entropy.h"

#define ZSTD_STATIC_LINKING_ONLY  // for literalCompressionMode; the shared library has it, and nothing else from there is used
#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "storage/base/check.h"

namespace kvist::codec {
namespace {

// zstd's own functions take more than one frame, frames to be skipped and the forms of old versions, each with a decoder of its own.
bool IsOneFrame(std::span<const uint8_t> input) {
  uint32_t magic = 0;
  if (input.size() < sizeof magic) return false;
  std::memcpy(&magic, input.data(), sizeof magic);
  return magic == ZSTD_MAGICNUMBER && ZSTD_findFrameCompressedSize(input.data(), input.size()) == input.size();
}

}  // namespace

struct Compressor::Context {
  ZSTD_CCtx* zstd = ZSTD_createCCtx();
  ~Context() { ZSTD_freeCCtx(zstd); }
  void Set(ZSTD_cParameter parameter, int value) {
    KVIST_CHECK(ZSTD_isError(ZSTD_CCtx_setParameter(zstd, parameter, value)) == 0);
  }
};

Compressor::Compressor(How how) : context_(std::make_unique<Context>()) {
  KVIST_CHECK(context_->zstd != nullptr);
  context_->Set(ZSTD_c_compressionLevel, 1);
  context_->Set(ZSTD_c_contentSizeFlag, 0);  // whoever decodes knows it
  if (how == How::kRepeats) return;
  // As good as no search: long steps through a small table. Blocks have the most that zstd gives a table of codes to.
  context_->Set(ZSTD_c_windowLog, 17);
  context_->Set(ZSTD_c_hashLog, ZSTD_HASHLOG_MIN);
  context_->Set(ZSTD_c_strategy, ZSTD_fast);
  context_->Set(ZSTD_c_minMatch, 7);
  context_->Set(ZSTD_c_targetLength, ZSTD_TARGETLENGTH_MAX);
  context_->Set(ZSTD_c_literalCompressionMode, ZSTD_ps_enable);  // levels that search so little leave it out otherwise
}

Compressor::~Compressor() = default;

std::optional<size_t> Compressor::Compress(std::span<const uint8_t> input, std::span<uint8_t> out) {
  if (input.empty()) return std::nullopt;
  const size_t room = std::min(out.size(), input.size() - 1);
  const size_t length = ZSTD_compress2(context_->zstd, out.data(), room, input.data(), input.size());
  if (ZSTD_isError(length) != 0) return std::nullopt;  // only want of room can be it
  return length;
}

struct Decompressor::Context {
  ZSTD_DCtx* zstd = ZSTD_createDCtx();
  ~Context() { ZSTD_freeDCtx(zstd); }
};

Decompressor::Decompressor() : context_(std::make_unique<Context>()) { KVIST_CHECK(context_->zstd != nullptr); }
Decompressor::~Decompressor() = default;

bool Decompressor::Decompress(std::span<const uint8_t> input, std::span<uint8_t> out) {
  if (!IsOneFrame(input)) return false;
  const size_t length = ZSTD_decompressDCtx(context_->zstd, out.data(), out.size(), input.data(), input.size());
  return ZSTD_isError(length) == 0 && length == out.size();
}

bool SeemsCompressible(std::span<const uint8_t> bytes) {
  if (bytes.empty()) return false;
  constexpr size_t kSamples = 4096;
  const size_t all = std::min(bytes.size(), kSamples), every = bytes.size() / all;
  uint32_t counts[256] = {};
  for (size_t i = 0; i < all; ++i) {
    // One of each stretch, at another place in each: rows of any length may lie one after the other here.
    const size_t place = (static_cast<uint32_t>(i) * 2654435761U >> 8) % every;  // 2^32 over the golden ratio
    ++counts[bytes[i * bytes.size() / all + place]];
  }
  const auto taken = static_cast<double>(all);
  double bits = 0;
  uint32_t kinds = 0;
  for (const uint32_t count : counts) {
    if (count == 0) continue;
    bits -= count * std::log2(count / taken);
    ++kinds;
  }
  // A sample seems less even than what it is of: by about half a bit in e for each kind of byte.
  const double entropy = bits / taken + (kinds - 1) / (2.0 * taken * std::log(2.0));
  return entropy < 8 * 0.95;
}

}  // namespace kvist::codec
