#ifndef KVIST_TESTS_UNIT_TINYLLM_SMALL_MODEL_H_
#define KVIST_TESTS_UNIT_TINYLLM_SMALL_MODEL_H_

#include <memory>
#include <random>
#include <vector>

#include "examples/tinyllm/model.h"

namespace tinyllm {

// A model that computes thousands of tokens a second also under sanitizers; the same for all tests of the process.
inline const std::shared_ptr<const Model>& SmallModel() {
  static const std::shared_ptr<const Model> model = *Model::Create(
      {.layers = 2, .model_dim = 64, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn_dim = 176, .context_max = 2048});
  return model;
}

inline std::vector<Token> RandomTokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = random() % 256;
  return tokens;
}

}  // namespace tinyllm

#endif  // KVIST_TESTS_UNIT_TINYLLM_SMALL_MODEL_H_
