#include "examples/tinyllm/gemm.h"

#include <algorithm>
#include <array>
#include <utility>

#include "examples/tinyllm/vector.h"

namespace tinyllm {
namespace {

// Rows of one task: enough to use a panel well while it is in the cache, few enough to share a matrix among threads.
constexpr int kTaskRows = 16 * kBlockRows;

// `kRows` rows at once. All row counts run the same operations per element; contraction to fused multiply-adds is asked for
// in CMakeLists.txt and checked by tests (equal bits for all row counts).
template <int kRows>
void MultiplyBlock(int depth, Operand a, const float* panel, float* c, ptrdiff_t c_stride, Result result) {
  Vec sum[kRows][2];
  for (int row = 0; row < kRows; ++row) {
    for (int half = 0; half < 2; ++half)
      sum[row][half] = result == Result::kAdd ? Load(c + row * c_stride + half * kLanes) : Vec{};
  }
  for (int k = 0; k < depth; ++k) {
    const Vec left = Load(panel), right = Load(panel + kLanes);
    for (int row = 0; row < kRows; ++row) {
      const float x = a.data[row * a.row_stride];
      sum[row][0] += x * left;
      sum[row][1] += x * right;
    }
    a.data += a.k_stride;
    panel += kPanelColumns;
  }
  for (int row = 0; row < kRows; ++row) {
    for (int half = 0; half < 2; ++half) Store(c + row * c_stride + half * kLanes, sum[row][half]);
  }
}

using Block = void (*)(int, Operand, const float*, float*, ptrdiff_t, Result);

template <int... kRows>
constexpr std::array<Block, sizeof...(kRows)> BlocksOf(std::integer_sequence<int, kRows...>) {
  return {&MultiplyBlock<kRows + 1>...};
}

// kBlocks[n - 1] does n rows.
constexpr auto kBlocks = BlocksOf(std::make_integer_sequence<int, kBlockRows>());

}  // namespace

void MultiplyPanel(int rows, int depth, Operand a, const float* panel, float* c, ptrdiff_t c_stride, Result result) {
  for (int row = 0; row < rows; row += kBlockRows) {
    const int count = std::min(kBlockRows, rows - row);
    const Operand block{a.data + row * a.row_stride, a.row_stride, a.k_stride};
    kBlocks[static_cast<size_t>(count - 1)](depth, block, panel, c + row * c_stride, c_stride, result);
  }
}

PackedMatrix::PackedMatrix(int depth, int columns)
    : depth_(depth),
      columns_(columns),
      panels_((columns + kPanelColumns - 1) / kPanelColumns),
      data_(PanelOffset(panels_)) {}

float& PackedMatrix::at(int k, int column) {
  const size_t in_panel = static_cast<size_t>(k) * kPanelColumns + static_cast<size_t>(column % kPanelColumns);
  return data_[PanelOffset(column / kPanelColumns) + in_panel];
}

size_t PackedMatrix::PanelOffset(int index) const {
  return static_cast<size_t>(index) * static_cast<size_t>(depth_) * kPanelColumns;
}

void Multiply(ThreadPool& pool, int rows, Operand a, const PackedMatrix& b, float* c, ptrdiff_t c_stride, Result result) {
  const int row_tasks = (rows + kTaskRows - 1) / kTaskRows;
  pool.ParallelFor(row_tasks * b.panels(), [&](int task) {
    const int panel = task % b.panels();
    const int row = task / b.panels() * kTaskRows;
    MultiplyPanel(std::min(kTaskRows, rows - row), b.depth(), {a.data + row * a.row_stride, a.row_stride, a.k_stride},
                  b.panel(panel), c + row * c_stride + panel * kPanelColumns, c_stride, result);
  });
}

}  // namespace tinyllm
