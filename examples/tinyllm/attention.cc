#include "examples/tinyllm/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "examples/tinyllm/vector.h"

namespace tinyllm {
namespace {

constexpr int kHalves = 2;  // vectors of a panel
constexpr float kMasked = -std::numeric_limits<float>::infinity();

// What one thread needs for one block; panels are [..][kPanelColumns], a column a query.
struct Scratch {
  std::vector<float> queries;  // [head_dim] panel
  std::vector<float> keys;     // [kTileTokens][head_dim]
  std::vector<float> values;   // [kTileTokens][head_dim]
  std::vector<float> weights;  // [kTileTokens] panel: scores, then their exponentials
  std::vector<float> out;      // [head_dim] panel

  explicit Scratch(size_t head_dim)
      : queries(head_dim * kPanelColumns),
        keys(kTileTokens * head_dim),
        values(kTileTokens * head_dim),
        weights(size_t{kTileTokens} * kPanelColumns),
        out(head_dim * kPanelColumns) {}
};

Scratch& ThreadScratch(int head_dim) {
  thread_local std::vector<Scratch> scratch;  // at most one for each head_dim of the process
  for (Scratch& s : scratch) {
    if (s.out.size() == static_cast<size_t>(head_dim) * kPanelColumns) return s;
  }
  return scratch.emplace_back(static_cast<size_t>(head_dim));
}

// The running softmax of the queries of one half of a panel.
struct Softmax {
  Vec position{};  // of the query's token
  Vec max = Broadcast(kMasked);
  Vec sum{};
};

void Unpack(const Bf16* from, int count, float* to) {
  for (int i = 0; i < count; ++i) to[i] = FromBf16(from[i]);
}

void UnpackTile(const AttentionBlock& block, int first, int count, Scratch& scratch) {
  const int offset = block.kv_head * block.head_dim;
  for (int i = 0; i < count; ++i) {
    const PageId page = block.pages[static_cast<size_t>((first + i) / kPageTokens)];
    const int token = (first + i) % kPageTokens;
    Unpack(block.memory->Key(block.layer, page, token) + offset, block.head_dim,
           &scratch.keys[static_cast<size_t>(i * block.head_dim)]);
    Unpack(block.memory->Value(block.layer, page, token) + offset, block.head_dim,
           &scratch.values[static_cast<size_t>(i * block.head_dim)]);
  }
}

// Turns one half's scores into weights relative to the new maximum, and what was summed so far, too.
void SoftmaxTile(int first, int count, int head_dim, float* weights, float* out, Softmax& softmax) {
  Vec max = softmax.max;
  for (int i = 0; i < count; ++i) {
    float* at = weights + i * kPanelColumns;
    const Vec score = Broadcast(static_cast<float>(first + i)) <= softmax.position ? Load(at) : Broadcast(kMasked);
    Store(at, score);
    max = Max(score, max);
  }
  const Vec correction = Exp(softmax.max - max);
  softmax.max = max;
  softmax.sum *= correction;
  for (int i = 0; i < count; ++i) {
    float* at = weights + i * kPanelColumns;
    const Vec weight = Exp(Load(at) - max);
    Store(at, weight);
    softmax.sum += weight;
  }
  for (int d = 0; d < head_dim; ++d) Store(out + d * kPanelColumns, Load(out + d * kPanelColumns) * correction);
}

}  // namespace

int AttentionBlockTokens(int group) { return kPanelColumns / group; }

void Attend(const AttentionBlock& block) {
  const int dim = block.head_dim;
  Scratch& scratch = ThreadScratch(dim);
  std::fill(scratch.queries.begin(), scratch.queries.end(), 0.0f);
  std::fill(scratch.out.begin(), scratch.out.end(), 0.0f);
  Softmax softmax[kHalves];

  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int lane = 0; lane < block.tokens * block.group; ++lane) {
    const int token = lane / block.group, head = lane % block.group;
    softmax[lane / kLanes].position[lane % kLanes] = static_cast<float>(block.position + token);
    const float* query = block.queries.data + token * block.queries.row_stride + head * dim;
    for (int d = 0; d < dim; ++d) scratch.queries[static_cast<size_t>(d * kPanelColumns + lane)] = query[d] * scale;
  }

  const int end = block.position + block.tokens;
  for (int first = 0; first < end; first += kTileTokens) {
    const int count = std::min(kTileTokens, end - first);
    UnpackTile(block, first, count, scratch);
    MultiplyPanel(count, dim, {scratch.keys.data(), dim}, scratch.queries.data(), scratch.weights.data(), kPanelColumns,
                  Result::kOverwrite);
    for (int half = 0; half < kHalves; ++half) {
      SoftmaxTile(first, count, dim, &scratch.weights[static_cast<size_t>(half * kLanes)],
                  &scratch.out[static_cast<size_t>(half * kLanes)], softmax[half]);
    }
    MultiplyPanel(dim, count, {scratch.values.data(), 1, dim}, scratch.weights.data(), scratch.out.data(), kPanelColumns,
                  Result::kAdd);
  }

  // Adding zero makes a negative zero positive: masked keys may have turned one into the other.
  for (int lane = 0; lane < block.tokens * block.group; ++lane) {
    const int token = lane / block.group, head = lane % block.group;
    const float sum = softmax[lane / kLanes].sum[lane % kLanes];
    float* out = block.out + token * block.out_stride + head * dim;
    for (int d = 0; d < dim; ++d) out[d] = scratch.out[static_cast<size_t>(d * kPanelColumns + lane)] / sum + 0.0f;
  }
}

}  // namespace tinyllm
