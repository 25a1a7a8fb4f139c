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

// Where prefetched lines go: only near, past the outer caches; or into L2, which starts more reads at once. Into L2 is better where the source
// jumps, for that gives the hardware's prefetchers nothing to learn from; where it runs on it depends on the processor (FetchesNear).
// Measured: README.md.
enum Into { kNear = 0 /* prefetchnta */, kL2 = 2 /* prefetcht1 */ };

template <Into into>
inline void Prefetch(uintptr_t line) {
  __builtin_prefetch(reinterpret_cast<const void*>(line), 0, into);
}

// Whether a source that runs on is best fetched near. On a Zen (EPYC) it is 8 to 17 % faster, for its own prefetchers bring the rest; on a Sapphire
// Rapids half as fast, presumably because few lines can be on their way to L1. Of others nothing is known: half is worse than a tenth.
bool FetchesNear() { return __builtin_cpu_is("amd"); }

// Each copies `lines` whole lines to the aligned `to`, and asks for as many lines from the address `ahead` on, which may be any.
using CopyLines = void (*)(std::byte* to, const std::byte* from, size_t lines, uintptr_t ahead);

template <Into into>
__attribute__((target("avx512f"))) void CopyLinesAvx512(std::byte* to, const std::byte* from, size_t lines,
                                                        uintptr_t ahead) {
  for (; lines >= 4; lines -= 4, to += 4 * kLine, from += 4 * kLine, ahead += 4 * kLine) {
    Prefetch<into>(ahead);
    Prefetch<into>(ahead + kLine);
    Prefetch<into>(ahead + 2 * kLine);
    Prefetch<into>(ahead + 3 * kLine);
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
    Prefetch<into>(ahead);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
}

template <Into into>
__attribute__((target("avx2"))) void CopyLinesAvx2(std::byte* to, const std::byte* from, size_t lines, uintptr_t ahead) {
  for (; lines > 0; --lines, to += kLine, from += kLine, ahead += kLine) {
    Prefetch<into>(ahead);
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), b);
  }
}

template <Into into>
void CopyLinesSse2(std::byte* to, const std::byte* from, size_t lines, uintptr_t ahead) {
  for (; lines > 0; --lines, to += kLine, from += kLine, ahead += kLine) {
    Prefetch<into>(ahead);
    for (size_t i = 0; i < kLine; i += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
  }
}

template <CopyLines running_on, CopyLines jumping>
void CopyBy(std::byte* to, const std::byte* from, size_t length, const std::byte* next) {
  if (length < kSmall) {
    Prefetch<kL2>(reinterpret_cast<uintptr_t>(next));
    std::memcpy(to, from, length);
    return;
  }
  constexpr CopyLines kWays[] = {jumping, running_on};  // which may be the same: a table, so that this is no slip
  const CopyLines copy_lines = kWays[next == from + length ? 1 : 0];
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  to += head, from += head, length -= head;
  // All but the last lines fetch ahead within this area, the last ones the beginning of the next.
  const size_t lines = length / kLine;
  const size_t last = std::min(lines, kAheadLines);
  const size_t own = (lines - last) * kLine;
  copy_lines(to, from, lines - last, reinterpret_cast<uintptr_t>(from) + kAheadLines * kLine);
  copy_lines(to + own, from + own, last, reinterpret_cast<uintptr_t>(next));
  const size_t copied = lines * kLine;
  std::memcpy(to + copied, from + copied, length - copied);
}

}  // namespace

std::vector<NontemporalVariant> SupportedNontemporalVariants() {
  std::vector<NontemporalVariant> variants;
  const auto add = [&variants](std::string_view name, auto near, std::string_view l2_name, auto l2) {
    if (FetchesNear()) variants.push_back({name, near});
    variants.push_back({l2_name, l2});
    if (!FetchesNear()) variants.push_back({name, near});
  };
  if (__builtin_cpu_supports("avx512f")) {
    add("avx512, near", CopyBy<CopyLinesAvx512<kNear>, CopyLinesAvx512<kL2>>,  //
        "avx512, L2", CopyBy<CopyLinesAvx512<kL2>, CopyLinesAvx512<kL2>>);
  }
  if (__builtin_cpu_supports("avx2")) {
    add("avx2, near", CopyBy<CopyLinesAvx2<kNear>, CopyLinesAvx2<kL2>>,  //
        "avx2, L2", CopyBy<CopyLinesAvx2<kL2>, CopyLinesAvx2<kL2>>);
  }
  add("sse2, near", CopyBy<CopyLinesSse2<kNear>, CopyLinesSse2<kL2>>,  //
      "sse2, L2", CopyBy<CopyLinesSse2<kL2>, CopyLinesSse2<kL2>>);
  return variants;
}

void CopyNontemporal(std::byte* to, const std::byte* from, size_t length, const std::byte* next) {
  static const auto copy = SupportedNontemporalVariants().front().copy;
  copy(to, from, length, next);
}

void FenceNontemporal() { _mm_sfence(); }

}  // namespace kvist::cuda
