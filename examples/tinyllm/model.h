#ifndef KVIST_EXAMPLES_TINYLLM_MODEL_H_
#define KVIST_EXAMPLES_TINYLLM_MODEL_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/tinyllm/config.h"
#include "examples/tinyllm/gemm.h"
#include "examples/tinyllm/paged_memory.h"
#include "examples/tinyllm/thread_pool.h"
#include "examples/tinyllm/weights.h"

namespace tinyllm {

// One row of numbers for each token of a batch.
class Activations {
 public:
  // Contents are then unspecified.
  void Resize(int rows, int columns);
  float* row(int index) { return data_.data() + index * stride_; }
  ptrdiff_t stride() const { return stride_; }
  Operand operand() const { return {data_.data(), stride_}; }

 private:
  std::vector<float> data_;
  ptrdiff_t stride_ = 0;
};

// Consecutive tokens of one sequence.
struct Span {
  std::span<const Token> tokens;
  int position;                   // of the first of them; the KV of all earlier positions is in the pages
  std::span<const PageId> pages;  // of the sequence from position 0, enough for the last of the tokens
};

// One matrix product of a forward pass: [rows][depth] * [depth][columns], `count` times.
struct GemmShape {
  int rows, depth, columns, count;
};

// A decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU.
//
// Threads: immutable once created; any number of engines may share one.
class Model {
 public:
  // Errors: InvalidArgument, from config.Validate().
  static absl::StatusOr<std::shared_ptr<const Model>> Create(const ModelConfig& config);

  // What a forward pass computes in, kept from one to the next. One for each engine.
  struct Workspace {
    Activations residual, normed, qkv, attended, gate_up, last, logits;
  };

  // Runs all spans as one batch: writes the KV of their tokens into `memory`, and for each span the logits that follow its
  // last token into `logits`, [spans][kVocabulary]. A token's KV and logits are bit for bit the same in whatever spans and
  // batches it comes. Spans must be of different sequences, or of one in order of position; at most config().context_max
  // positions.
  void Forward(std::span<const Span> batch, const PagedMemory& memory, ThreadPool& pool, Workspace& workspace,
               std::vector<float>& logits) const;

  const ModelConfig& config() const { return config_; }
  // The products of one forward pass over `rows` tokens in `spans` spans.
  std::vector<GemmShape> GemmShapes(int rows, int spans) const;

 private:
  explicit Model(const ModelConfig& config);

  // The tokens of a batch one below the other.
  struct Row {
    Token token;
    int position;
    PageId page;  // that holds its position
  };
  static std::vector<Row> RowsOf(std::span<const Span> batch);
  void Rotate(float* head, int position) const;
  // Rotates queries and key in place and writes key and value to their page.
  void RotateAndWrite(const Row& row, int layer, const PagedMemory& memory, float* qkv) const;
  void AttendAll(std::span<const Span> batch, int layer, const PagedMemory& memory, ThreadPool& pool,
                 Workspace& workspace) const;

  const ModelConfig config_;
  const Weights weights_;
  std::vector<float> cosine_, sine_;  // [context_max][head_dim / 2]
};

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_MODEL_H_
