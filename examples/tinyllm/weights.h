#ifndef KVIST_EXAMPLES_TINYLLM_WEIGHTS_H_
#define KVIST_EXAMPLES_TINYLLM_WEIGHTS_H_

#include <vector>

#include "examples/tinyllm/config.h"
#include "examples/tinyllm/gemm.h"

namespace tinyllm {

struct LayerWeights {
  std::vector<float> attention_norm;  // [model_dim]
  PackedMatrix qkv;                   // [model_dim][q_dim, kv_dim (K), kv_dim (V)]
  PackedMatrix out;                   // [q_dim][model_dim]
  std::vector<float> ffn_norm;        // [model_dim]
  PackedMatrix gate_up;               // [model_dim][ffn_dim (gate), ffn_dim (up)]
  PackedMatrix down;                  // [ffn_dim][model_dim]
};

// Random weights, a function of config.seed alone. Each matrix has variance 1 / fan-in, so numbers keep their size from
// layer to layer and attention spreads over all keys: every page of the KV memory has a say in every answer.
struct Weights {
  explicit Weights(const ModelConfig& config);

  std::vector<float> embedding;  // [kVocabulary][model_dim]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [model_dim]
  PackedMatrix head;              // [model_dim][kVocabulary]
};

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_WEIGHTS_H_
