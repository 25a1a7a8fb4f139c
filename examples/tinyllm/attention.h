#ifndef KVIST_EXAMPLES_TINYLLM_ATTENTION_H_
#define KVIST_EXAMPLES_TINYLLM_ATTENTION_H_

#include <span>

#include "examples/tinyllm/gemm.h"
#include "examples/tinyllm/paged_memory.h"

namespace tinyllm {

// Causal attention of some consecutive tokens of one sequence to all tokens up to themselves, for the query heads that share
// one KV head. Keys and values are read from the pages only, those of the tokens themselves too: so it can't matter whether
// a page was computed in this batch, an earlier one, by another sequence, or loaded.
//
// A query (one token, one head) is a lane of a vector. Each lane takes the keys in tiles of kTileTokens from position 0
// (softmax is carried from tile to tile), and within a tile in order of position. Keys after a lane's own token add exactly
// nothing, so its result is the same whichever tokens share its vector.
inline constexpr int kTileTokens = 8 * kPageTokens;

struct AttentionBlock {
  const PagedMemory* memory;
  int layer;
  int kv_head;
  int group;  // query heads of the KV head
  int head_dim;
  std::span<const PageId> pages;  // of the sequence, from position 0
  int position;                   // of the first token
  int tokens;                     // at most AttentionBlockTokens(group)
  Operand queries;                // row: token; k: group * head_dim numbers, head by head
  float* out;                     // in the same order
  ptrdiff_t out_stride;
};

// Tokens that fit one block.
int AttentionBlockTokens(int group);

void Attend(const AttentionBlock& block);

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_ATTENTION_H_
