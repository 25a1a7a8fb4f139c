#include "cuda/nontemporal_copy.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace kvist::cuda {
namespace {

constexpr size_t kLine = 64;
// How far ahead of the copy the source is fetched. Hardware prefetchers stop at a 4 KiB page, and a 4 KiB-mapped memfd costs
// an address translation there: one page ahead hides both. Measured: README.md.
constexpr size_t kAheadLines = 4096 / kLine;
// Below this a plain copy is cheaper than aligning for whole lines.
constexpr size_t kSmall = 4 * kLine;

// Where prefetched lines go. A source that runs on is left to the hardware's prefetchers and only brought near, past the
// outer caches; one that jumps gives them nothing to learn from, and fetching into L2 starts more of its reads at once.
// Measured: README.md.
enum Source { kRunsOn = 0 /* prefetchnta */, kJumps = 2 /* prefetcht1 */ };

template <Source source>
inline void Prefetch(const std::byte* line) {
  __builtin_prefetch(line, 0, source);
}

// Each copies `lines` whole lines to the aligned `to`, and asks for as many lines from `ahead` on.
using CopyLines = void (*)(std::byte* to, const std::byte* from, size_t lines, const std::byte* ahead);

template <Source source>
__attribute__((target("avx512f"))) void CopyLinesAvx512(std::byte* to, const std::byte* from, size_t lines,
                                                        const std::byte* ahead) {
  for (; lines >= 4; lines -= 4, to += 4 * kLine, from += 4 * kLine, ahead += 4 * kLine) {
    Prefetch<source>(ahead);
    Prefetch<source>(ahead + kLine);
    Prefetch<source>(ahead + 2 * kLine);
    Prefetch<source>(ahead + 3 * kLine);
    const __m512i a = _mm512_loadu_si512(from);
    const __m512i b = _mm512_loadu_si512(from + kLine);
    const __m512i c = _mm512_loadu_si512(from + 2 * kLine);
    const __m512i d = _mm512_loadu_si512(from + 3 * kLine);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + kLine), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 2 * kLine), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 3 * kLine), d);
  }
  for (; lines > 0; --lines, to += kLine, from += kLine, ahead += kLine) {
    Prefetch<source>(ahead);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
}

template <Source source>
__attribute__((target("avx2"))) void CopyLinesAvx2(std::byte* to, const std::byte* from, size_t lines,
                                                   const std::byte* ahead) {
  for (; lines > 0; --lines, to += kLine, from += kLine, ahead += kLine) {
    Prefetch<source>(ahead);
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), b);
  }
}

template <Source source>
void CopyLinesSse2(std::byte* to, const std::byte* from, size_t lines, const std::byte* ahead) {
  for (; lines > 0; --lines, to += kLine, from += kLine, ahead += kLine) {
    Prefetch<source>(ahead);
    for (size_t i = 0; i < kLine; i += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
  }
}

template <CopyLines running_on, CopyLines jumping>
void CopyBy(std::byte* to, const std::byte* from, size_t length, const std::byte* next) {
  if (length < kSmall) {
    Prefetch<kJumps>(next);
    std::memcpy(to, from, length);
    return;
  }
  const CopyLines copy_lines = next == from + length ? running_on : jumping;
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  to += head, from += head, length -= head;
  // All but the last lines fetch ahead within this area, the last ones the beginning of the next.
  const size_t lines = length / kLine;
  const size_t last = std::min(lines, kAheadLines);
  const size_t own = (lines - last) * kLine;
  copy_lines(to, from, lines - last, from + kAheadLines * kLine);
  copy_lines(to + own, from + own, last, next);
  const size_t copied = lines * kLine;
  std::memcpy(to + copied, from + copied, length - copied);
}

}  // namespace

std::vector<NontemporalVariant> SupportedNontemporalVariants() {
  std::vector<NontemporalVariant> variants;
  if (__builtin_cpu_supports("avx512f"))
    variants.push_back({"avx512", CopyBy<CopyLinesAvx512<kRunsOn>, CopyLinesAvx512<kJumps>>});
  if (__builtin_cpu_supports("avx2")) variants.push_back({"avx2", CopyBy<CopyLinesAvx2<kRunsOn>, CopyLinesAvx2<kJumps>>});
  variants.push_back({"sse2", CopyBy<CopyLinesSse2<kRunsOn>, CopyLinesSse2<kJumps>>});
  return variants;
}

void CopyNontemporal(std::byte* to, const std::byte* from, size_t length, const std::byte* next) {
  static const auto copy = SupportedNontemporalVariants().front().copy;
  copy(to, from, length, next);
}

void FenceNontemporal() { _mm_sfence(); }

}  // namespace kvist::cuda
