#include "tests/bench/bare_gemm.h"

#include <cblas.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/time/clock.h"

namespace kvist::bench {
namespace {

// Longer than OpenBLAS's threads spin before they sleep (2^26 cycles).
constexpr absl::Duration kRest = absl::Milliseconds(60);

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
  for (const tinyllm::GemmShape& s : shapes_) {
    for (int i = 0; i < s.count; ++i) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, s.rows, s.columns, s.depth, 1, a_.data(), s.depth, b_.data(),
                  s.columns, 0, c_.data(), s.columns);
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
