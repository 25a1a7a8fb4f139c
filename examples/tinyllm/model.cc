#include "examples/tinyllm/model.h"

#include <algorithm>
#include <cmath>

#include "examples/tinyllm/attention.h"
#include "examples/tinyllm/gemm.h"
#include "examples/tinyllm/vector.h"

namespace tinyllm {
namespace {

constexpr float kRotationBase = 10000.0f;
constexpr float kEpsilon = 1e-5f;

// Rows that one thread takes at a time where rows are handled one by one.
constexpr int kRowsPerTask = 16;

template <class Body>
void ForEachRow(ThreadPool& pool, int rows, Body&& body) {
  pool.ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int task) {
    const int end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int row = task * kRowsPerTask; row < end; ++row) body(row);
  });
}

void RmsNorm(int dim, const float* x, const std::vector<float>& gain, float* out) {
  Vec squares{};
  for (int i = 0; i < dim; i += kLanes) squares += Load(x + i) * Load(x + i);
  const float scale = 1.0f / std::sqrt(Sum(squares) / static_cast<float>(dim) + kEpsilon);
  for (int i = 0; i < dim; i += kLanes) Store(out + i, Load(x + i) * scale * Load(gain.data() + i));
}

// gate = silu(gate) * up
void SwiGlu(int dim, float* gate, const float* up) {
  for (int i = 0; i < dim; i += kLanes) {
    const Vec x = Load(gate + i);
    Store(gate + i, x / (1.0f + Exp(Min(Vec{} - x, Broadcast(87.0f)))) * Load(up + i));
  }
}

}  // namespace

void Activations::Resize(int rows, int columns) {
  // Rows have room for the padding of a packed matrix, and a cache line more than that: the rows of a register block are
  // read together, and would compete for the same few cache sets if the stride were a power of two.
  stride_ = (columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns + 16;
  data_.resize(static_cast<size_t>(rows) * static_cast<size_t>(stride_));
}

absl::StatusOr<std::shared_ptr<const Model>> Model::Create(const ModelConfig& config) {
  if (absl::Status status = config.Validate(); !status.ok()) return status;
  return std::shared_ptr<const Model>(new Model(config));
}

Model::Model(const ModelConfig& config) : config_(config), weights_(config) {
  const int half = config.head_dim / 2;
  std::vector<float> rates;
  for (int i = 0; i < half; ++i) rates.push_back(std::pow(kRotationBase, -static_cast<float>(i) / static_cast<float>(half)));
  for (int position = 0; position < config.context_max; ++position) {
    for (const float rate : rates) {
      cosine_.push_back(std::cos(static_cast<float>(position) * rate));
      sine_.push_back(std::sin(static_cast<float>(position) * rate));
    }
  }
}

void Model::Forward(std::span<const Span> batch, const PagedMemory& memory, ThreadPool& pool, Workspace& w,
                    std::vector<float>& logits) const {
  const ModelConfig& c = config_;
  const std::vector<Row> rows = RowsOf(batch);
  const int count = static_cast<int>(rows.size());
  w.residual.Resize(count, c.model_dim);
  w.normed.Resize(count, c.model_dim);
  w.qkv.Resize(count, c.q_dim() + 2 * c.kv_dim());
  w.attended.Resize(count, c.q_dim());
  w.gate_up.Resize(count, 2 * c.ffn_dim);

  ForEachRow(pool, count, [&](int i) {
    const float* embedding = &weights_.embedding[rows[static_cast<size_t>(i)].token * static_cast<size_t>(c.model_dim)];
    std::copy_n(embedding, c.model_dim, w.residual.row(i));
  });

  for (int l = 0; l < c.layers; ++l) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(l)];
    ForEachRow(pool, count, [&](int i) { RmsNorm(c.model_dim, w.residual.row(i), layer.attention_norm, w.normed.row(i)); });
    Multiply(pool, count, w.normed.operand(), layer.qkv, w.qkv.row(0), w.qkv.stride(), Result::kOverwrite);
    ForEachRow(pool, count, [&](int i) { RotateAndWrite(rows[static_cast<size_t>(i)], l, memory, w.qkv.row(i)); });
    AttendAll(batch, l, memory, pool, w);
    Multiply(pool, count, w.attended.operand(), layer.out, w.residual.row(0), w.residual.stride(), Result::kAdd);

    ForEachRow(pool, count, [&](int i) { RmsNorm(c.model_dim, w.residual.row(i), layer.ffn_norm, w.normed.row(i)); });
    Multiply(pool, count, w.normed.operand(), layer.gate_up, w.gate_up.row(0), w.gate_up.stride(), Result::kOverwrite);
    ForEachRow(pool, count, [&](int i) { SwiGlu(c.ffn_dim, w.gate_up.row(i), w.gate_up.row(i) + c.ffn_dim); });
    Multiply(pool, count, w.gate_up.operand(), layer.down, w.residual.row(0), w.residual.stride(), Result::kAdd);
  }

  // Only the last token of a span is asked what comes next.
  const int spans = static_cast<int>(batch.size());
  w.last.Resize(spans, c.model_dim);
  w.logits.Resize(spans, kVocabulary);
  for (int i = 0, row = -1; i < spans; ++i) {
    row += static_cast<int>(batch[static_cast<size_t>(i)].tokens.size());
    RmsNorm(c.model_dim, w.residual.row(row), weights_.final_norm, w.last.row(i));
  }
  Multiply(pool, spans, w.last.operand(), weights_.head, w.logits.row(0), w.logits.stride(), Result::kOverwrite);
  logits.clear();
  for (int i = 0; i < spans; ++i) logits.insert(logits.end(), w.logits.row(i), w.logits.row(i) + kVocabulary);
}

std::vector<GemmShape> Model::GemmShapes(int rows, int spans) const {
  const ModelConfig& c = config_;
  return {{rows, c.model_dim, c.q_dim() + 2 * c.kv_dim(), c.layers},
          {rows, c.q_dim(), c.model_dim, c.layers},
          {rows, c.model_dim, 2 * c.ffn_dim, c.layers},
          {rows, c.ffn_dim, c.model_dim, c.layers},
          {spans, c.model_dim, kVocabulary, 1}};
}

std::vector<Model::Row> Model::RowsOf(std::span<const Span> batch) {
  std::vector<Row> rows;
  for (const Span& span : batch) {
    int position = span.position;
    for (const Token token : span.tokens) {
      rows.push_back({token, position, span.pages[static_cast<size_t>(position / kPageTokens)]});
      ++position;
    }
  }
  return rows;
}

void Model::Rotate(float* head, int position) const {
  const int half = config_.head_dim / 2;
  const float* cosine = &cosine_[static_cast<size_t>(position) * static_cast<size_t>(half)];
  const float* sine = &sine_[static_cast<size_t>(position) * static_cast<size_t>(half)];
  for (int i = 0; i < half; ++i) {
    const float x = head[i], y = head[i + half];
    head[i] = x * cosine[i] - y * sine[i];
    head[i + half] = x * sine[i] + y * cosine[i];
  }
}

void Model::RotateAndWrite(const Row& row, int layer, const PagedMemory& memory, float* qkv) const {
  const ModelConfig& c = config_;
  for (int head = 0; head < c.heads + c.kv_heads; ++head) Rotate(qkv + head * c.head_dim, row.position);
  const int token = row.position % kPageTokens;
  std::transform(qkv + c.q_dim(), qkv + c.q_dim() + c.kv_dim(), memory.Key(layer, row.page, token), ToBf16);
  std::transform(qkv + c.q_dim() + c.kv_dim(), qkv + c.q_dim() + 2 * c.kv_dim(), memory.Value(layer, row.page, token),
                 ToBf16);
}

void Model::AttendAll(std::span<const Span> batch, int layer, const PagedMemory& memory, ThreadPool& pool,
                      Workspace& w) const {
  const ModelConfig& c = config_;
  std::vector<AttentionBlock> blocks;
  int row = 0;
  for (const Span& span : batch) {
    const int size = static_cast<int>(span.tokens.size());
    for (int first = 0; first < size; first += AttentionBlockTokens(c.group())) {
      const int tokens = std::min(AttentionBlockTokens(c.group()), size - first);
      for (int head = 0; head < c.kv_heads; ++head) {
        const ptrdiff_t offset = ptrdiff_t{head} * c.group() * c.head_dim;
        blocks.push_back({.memory = &memory,
                          .layer = layer,
                          .kv_head = head,
                          .group = c.group(),
                          .head_dim = c.head_dim,
                          .pages = span.pages,
                          .position = span.position + first,
                          .tokens = tokens,
                          .queries = {w.qkv.row(row + first) + offset, w.qkv.stride()},
                          .out = w.attended.row(row + first) + offset,
                          .out_stride = w.attended.stride()});
      }
    }
    row += size;
  }
  pool.ParallelFor(static_cast<int>(blocks.size()), [&](int i) { Attend(blocks[static_cast<size_t>(i)]); });
}

}  // namespace tinyllm
