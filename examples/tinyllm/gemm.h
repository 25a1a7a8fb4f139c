#ifndef KVIST_EXAMPLES_TINYLLM_GEMM_H_
#define KVIST_EXAMPLES_TINYLLM_GEMM_H_

#include <cstddef>
#include <vector>

#include "examples/tinyllm/thread_pool.h"

// Matrix products whose every element is the same whatever else is computed beside it.
//
// The rule: c[m][n] starts from 0 (or from what c held) and takes a[m][k] * b[k][n] for k = 0, 1, 2, ... in this order, each
// by one fused multiply-add. Blocking only decides which elements are in registers together, never the order within one. So
// a token's result depends neither on the tokens batched with it, nor on chunk sizes, nor on the number of threads.
namespace tinyllm {

// A row-major operand that is read one number at a time: element (row, k) is data[row * row_stride + k * k_stride].
struct Operand {
  const float* data;
  ptrdiff_t row_stride;
  ptrdiff_t k_stride = 1;
};

// What happens to what the result held before.
enum class Result { kOverwrite, kAdd };

// c[row][0 .. n) = or += sum over k of a(row, k) * panel[k][0 .. n) for all rows, with n = kPanelColumns of vector.h; c's
// rows lie c_stride apart. Model and attention use this one kernel only.
void MultiplyPanel(int rows, int depth, Operand a, const float* panel, float* c, ptrdiff_t c_stride, Result result);

// A weight matrix b[k][n], stored as panels [k][kPanelColumns] side by side; columns past the last are zero.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(int depth, int columns);

  float& at(int k, int column);
  const float* panel(int index) const { return data_.data() + PanelOffset(index); }

  int depth() const { return depth_; }
  int columns() const { return columns_; }
  int panels() const { return panels_; }

 private:
  size_t PanelOffset(int index) const;

  int depth_ = 0;
  int columns_ = 0;
  int panels_ = 0;
  std::vector<float> data_;
};

// c = or += a * b on all threads of the pool. c's rows are at least b.columns() long, rounded up to whole panels.
void Multiply(ThreadPool& pool, int rows, Operand a, const PackedMatrix& b, float* c, ptrdiff_t c_stride, Result result);

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_GEMM_H_
