#include "examples/tinyllm/weights.h"

#include <cmath>

namespace tinyllm {
namespace {

// A stream of uniform numbers with mean 0. Source: splitmix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  float Uniform(float deviation) {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    z ^= z >> 31;
    const float unit = static_cast<float>(z >> 40) * 0x1p-23f - 1;  // [-1, 1), standard deviation 1 / sqrt(3)
    return unit * 1.7320508f * deviation;
  }

 private:
  uint64_t state_;
};

PackedMatrix RandomMatrix(int depth, int columns, Random& random) {
  PackedMatrix matrix(depth, columns);
  const float deviation = 1.0f / std::sqrt(static_cast<float>(depth));
  for (int k = 0; k < depth; ++k) {
    for (int column = 0; column < columns; ++column) matrix.at(k, column) = random.Uniform(deviation);
  }
  return matrix;
}

std::vector<float> RandomVector(size_t size, float mean, float deviation, Random& random) {
  std::vector<float> vector(size);
  for (float& x : vector) x = mean + random.Uniform(deviation);
  return vector;
}

}  // namespace

Weights::Weights(const ModelConfig& config) {
  Random random(config.seed);
  const size_t dim = static_cast<size_t>(config.model_dim);
  const auto norm = [&] { return RandomVector(dim, 1.0f, 0.1f, random); };

  embedding = RandomVector(kVocabulary * dim, 0.0f, 1.0f, random);
  for (int i = 0; i < config.layers; ++i) {
    LayerWeights& layer = layers.emplace_back();
    layer.attention_norm = norm();
    layer.qkv = RandomMatrix(config.model_dim, config.q_dim() + 2 * config.kv_dim(), random);
    layer.out = RandomMatrix(config.q_dim(), config.model_dim, random);
    layer.ffn_norm = norm();
    layer.gate_up = RandomMatrix(config.model_dim, 2 * config.ffn_dim, random);
    layer.down = RandomMatrix(config.ffn_dim, config.model_dim, random);
  }
  final_norm = norm();
  head = RandomMatrix(config.model_dim, kVocabulary, random);
}

}  // namespace tinyllm
