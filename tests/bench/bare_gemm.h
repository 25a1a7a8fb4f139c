#ifndef KVIST_TESTS_BENCH_BARE_GEMM_H_
#define KVIST_TESTS_BENCH_BARE_GEMM_H_

#include <vector>

#include "examples/tinyllm/model.h"

namespace kvist::bench {

// The matrix products of a forward pass and nothing else, by OpenBLAS on all cores, in single precision as tinyllm's.
class BareGemm {
 public:
  explicit BareGemm(std::vector<tinyllm::GemmShape> shapes);

  // Does all of them once. OpenBLAS's threads spin for a while afterwards: Rest before anything else is measured.
  void Run();
  static void Rest();
  // Multiplications and additions of one Run.
  double flop() const;

 private:
  const std::vector<tinyllm::GemmShape> shapes_;
  std::vector<float> a_, b_, c_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_BARE_GEMM_H_
