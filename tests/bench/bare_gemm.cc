#include "tests/bench/bare_gemm.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>

#include "absl/time/clock.h"
#include "tests/bench/pinning.h"

namespace kvist::bench {
namespace {

// Longer than OpenBLAS's threads spin before they sleep (2^26 cycles).
constexpr absl::Duration kRest = absl::Milliseconds(60);

// cblas_sgemm of OpenBLAS; both orders and no transposition are all that is wanted of it.
using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                       int lda, const float* b, int ldb, float beta, float* c, int ldc);
constexpr int kRowMajor = 101, kNoTranspose = 111;

// On all processors that this process may use, whatever the environment says: fewer would make it an easy limit.
Sgemm LoadSgemm() {
  void* library = ::dlopen("libopenblas.so.0", RTLD_NOW);
  void* found = library == nullptr ? nullptr : ::dlsym(library, "cblas_sgemm");
  if (found == nullptr) {
    std::fprintf(stderr, "kvist-bench: no OpenBLAS (libopenblas0): %s\n", ::dlerror());
    std::exit(1);
  }
  const auto set_threads = reinterpret_cast<void (*)(int)>(::dlsym(library, "openblas_set_num_threads"));
  const auto threads = reinterpret_cast<int (*)()>(::dlsym(library, "openblas_get_num_threads"));
  const auto core = reinterpret_cast<const char* (*)()>(::dlsym(library, "openblas_get_corename"));
  const auto wanted = static_cast<int>(UsableCpus().size());
  if (set_threads != nullptr) set_threads(wanted);
  if (threads == nullptr || threads() != wanted) {
    std::fprintf(stderr, "kvist-bench: OpenBLAS doesn't use the %d processors that this process may\n", wanted);
    std::exit(1);
  }
  std::fprintf(stderr, "OpenBLAS: %d threads, its kernels for %s\n", wanted,
               core != nullptr ? core() : "an unknown processor");
  return reinterpret_cast<Sgemm>(found);
}

size_t Product(int rows, int columns) { return static_cast<size_t>(rows) * static_cast<size_t>(columns); }

}  // namespace

BareGemm::BareGemm(std::vector<tinyllm::GemmShape> shapes) : shapes_(std::move(shapes)) {
  size_t a = 0, b = 0, c = 0;
  for (const tinyllm::GemmShape& s : shapes_) {
    a = std::max(a, Product(s.rows, s.depth));
    b = std::max(b, Product(s.depth, s.columns));
    c = std::max(c, Product(s.rows, s.columns));
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<float> number(-1, 1);
  a_.resize(a);
  b_.resize(b);
  c_.resize(c);
  for (std::vector<float>* matrix : {&a_, &b_}) std::ranges::generate(*matrix, [&] { return number(random); });
}

void BareGemm::Run() {
  static const Sgemm sgemm = LoadSgemm();
  for (const tinyllm::GemmShape& s : shapes_) {
    for (int i = 0; i < s.count; ++i) {
      sgemm(kRowMajor, kNoTranspose, kNoTranspose, s.rows, s.columns, s.depth, 1, a_.data(), s.depth, b_.data(), s.columns,
            0, c_.data(), s.columns);
    }
  }
}

void BareGemm::Rest() { absl::SleepFor(kRest); }

double BareGemm::flop() const {
  double flop = 0;
  for (const tinyllm::GemmShape& s : shapes_) flop += 2.0 * s.rows * s.depth * s.columns * s.count;
  return flop;
}

}  // namespace kvist::bench
