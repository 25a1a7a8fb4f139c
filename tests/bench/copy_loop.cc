#include "tests/bench/copy_loop.h"

#include <immintrin.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

namespace kvist::bench {
namespace {

constexpr size_t kLine = 64;

// Copies one page; `next` is read after it.
using CopyPage = void (*)(std::byte* to, const std::byte* from, size_t size, const std::byte* next);

template <CopyPage copy>
void Each(std::span<const Move> moves, size_t size) {
  for (size_t i = 0; i < moves.size(); ++i)
    copy(moves[i].to, moves[i].from, size, moves[i + 1 < moves.size() ? i + 1 : i].from);
}

template <int hint>
inline void Fetch(const std::byte* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), static_cast<_mm_hint>(hint));
}

// Both loops: the line that is `ahead` bytes further is fetched, past this page's end in the next page.
template <int hint, size_t ahead>
__attribute__((target("avx512f"))) void Avx512(std::byte* to, const std::byte* from, size_t size, const std::byte* next) {
  const size_t own = size > ahead ? size - ahead : 0;
  size_t i = 0;
  const auto lines = [&](const std::byte* fetch) __attribute__((always_inline, target("avx512f"))) {
    Fetch<hint>(fetch);
    Fetch<hint>(fetch + kLine);
    Fetch<hint>(fetch + 2 * kLine);
    Fetch<hint>(fetch + 3 * kLine);
    const __m512i a = _mm512_load_si512(from + i);
    const __m512i b = _mm512_load_si512(from + i + kLine);
    const __m512i c = _mm512_load_si512(from + i + 2 * kLine);
    const __m512i d = _mm512_load_si512(from + i + 3 * kLine);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + kLine), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 2 * kLine), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 3 * kLine), d);
  };
  for (; i < own; i += 4 * kLine) lines(from + i + ahead);
  for (; i < size; i += 4 * kLine) lines(next + (i - own));
}

template <int hint, size_t ahead>
__attribute__((target("avx2"))) void Avx2(std::byte* to, const std::byte* from, size_t size, const std::byte* next) {
  const size_t own = size > ahead ? size - ahead : 0;
  for (size_t i = 0; i < size; i += 2 * kLine) {
    const std::byte* fetch = i < own ? from + i + ahead : next + (i - own);
    Fetch<hint>(fetch);
    Fetch<hint>(fetch + kLine);
    const auto* source = reinterpret_cast<const __m256i*>(from + i);
    const __m256i a = _mm256_load_si256(source), b = _mm256_load_si256(source + 1);
    const __m256i c = _mm256_load_si256(source + 2), d = _mm256_load_si256(source + 3);
    auto* target = reinterpret_cast<__m256i*>(to + i);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
}

template <int hint, size_t ahead>
void Sse2(std::byte* to, const std::byte* from, size_t size, const std::byte* next) {
  const size_t own = size > ahead ? size - ahead : 0;
  for (size_t i = 0; i < size; i += kLine) {
    Fetch<hint>(i < own ? from + i + ahead : next + (i - own));
    for (size_t j = i; j < i + kLine; j += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + j), _mm_load_si128(reinterpret_cast<const __m128i*>(from + j)));
    }
  }
}

void Plain(std::byte* to, const std::byte* from, size_t size, const std::byte*) { std::memcpy(to, from, size); }

enum class ProcessVm { kRead, kWrite };

template <ProcessVm call>
void ByProcessVm(std::span<const Move> moves, size_t size) {
  constexpr size_t kPieces = 512;
  static const pid_t self = ::getpid();
  while (!moves.empty()) {
    std::array<iovec, kPieces> to, from;
    const size_t count = std::min(moves.size(), kPieces);
    for (size_t i = 0; i < count; ++i) {
      to[i] = {moves[i].to, size};
      from[i] = {const_cast<std::byte*>(moves[i].from), size};
    }
    const ssize_t copied = call == ProcessVm::kRead ? ::process_vm_readv(self, to.data(), count, from.data(), count, 0)
                                                    : ::process_vm_writev(self, from.data(), count, to.data(), count, 0);
    if (copied != static_cast<ssize_t>(count * size)) std::abort();  // no limit at all
    moves = moves.subspan(count);
  }
}

std::vector<PageKernel> ProcessVmKernels(CopyPages copy) {
  return {{"process_vm, 512 KiB a call", copy, 512 << 10},
          {"process_vm, 2 MiB a call", copy, 2 << 20},
          {"process_vm, 8 MiB a call", copy, 8 << 20}};
}

}  // namespace

std::vector<PageKernel> NontemporalKernels() {
  std::vector<PageKernel> kernels;
  if (__builtin_cpu_supports("avx512f")) {
    kernels.push_back({"avx512, nta, 1 KiB", Each<Avx512<_MM_HINT_NTA, 1024>>});
    kernels.push_back({"avx512, nta, 4 KiB", Each<Avx512<_MM_HINT_NTA, 4096>>});
    kernels.push_back({"avx512, t0, 2 KiB", Each<Avx512<_MM_HINT_T0, 2048>>});
    kernels.push_back({"avx512, t1, 4 KiB", Each<Avx512<_MM_HINT_T1, 4096>>});
    kernels.push_back({"avx512, t1, 8 KiB", Each<Avx512<_MM_HINT_T1, 8192>>});
  }
  if (__builtin_cpu_supports("avx2")) {
    kernels.push_back({"avx2, nta, 2 KiB", Each<Avx2<_MM_HINT_NTA, 2048>>});
    kernels.push_back({"avx2, t1, 4 KiB", Each<Avx2<_MM_HINT_T1, 4096>>});
  }
  if (kernels.empty()) kernels.push_back({"sse2, t1, 4 KiB", Each<Sse2<_MM_HINT_T1, 4096>>});
  return kernels;
}

PageKernel PlainKernel() { return {"memcpy", Each<Plain>}; }

std::vector<PageKernel> ProcessVmReadKernels() { return ProcessVmKernels(ByProcessVm<ProcessVm::kRead>); }
std::vector<PageKernel> ProcessVmWriteKernels() { return ProcessVmKernels(ByProcessVm<ProcessVm::kWrite>); }

CopyLoop::CopyLoop(uint32_t threads) {
  for (uint32_t i = 1; i < threads; ++i) threads_.emplace_back([this] { Thread(); });
}

CopyLoop::~CopyLoop() {
  stop_.store(true);
  awake_.fetch_add(1);
  awake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CopyLoop::Ready() {
  spinning_.store(0);
  awake_.fetch_add(1);
  awake_.notify_all();
  while (spinning_.load() != threads_.size()) _mm_pause();
}

void CopyLoop::Run(std::span<const Move> moves, size_t size, const PageKernel& kernel) {
  moves_ = moves;
  size_ = size;
  kernel_ = kernel;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  Work();
  while (running_.load(std::memory_order_acquire) != 0) _mm_pause();
}

void CopyLoop::Work() {
  const size_t claim = std::max<size_t>(1, kernel_.claim_bytes / size_);
  while (true) {
    const size_t first = next_.fetch_add(claim, std::memory_order_relaxed);
    if (first >= moves_.size()) break;
    kernel_.copy(moves_.subspan(first, std::min(claim, moves_.size() - first)), size_);
  }
  _mm_sfence();
}

void CopyLoop::Thread() {
  for (uint32_t seen = 0;; ++seen) {
    awake_.wait(seen);
    if (stop_.load()) return;
    const uint32_t round = round_.load(std::memory_order_relaxed);
    spinning_.fetch_add(1);
    while (round_.load(std::memory_order_acquire) == round) _mm_pause();
    Work();
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace kvist::bench
