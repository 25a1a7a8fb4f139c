#ifndef KVIST_EXAMPLES_TINYLLM_CONFIG_H_
#define KVIST_EXAMPLES_TINYLLM_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tinyllm {

// A token is a byte of text, or kBeginOfText, which starts every prompt.
using Token = uint32_t;
inline constexpr Token kBeginOfText = 256;
inline constexpr int kVocabulary = 257;

// Tokens of a page of KV memory.
inline constexpr int kPageTokens = 16;

// The transformer's shape. The default is about 18 million weights, 35 MFLOP and 6 KiB of KV a token: big enough that a long
// prompt costs seconds on two cores and loading it costs none, small enough for a demonstration.
struct ModelConfig {
  int layers = 6;
  int model_dim = 512;  // a multiple of 16
  int heads = 8;
  int kv_heads = 4;         // divides heads; each is shared by heads / kv_heads query heads
  int head_dim = 64;        // a multiple of 16
  int ffn_dim = 1408;       // a multiple of 16
  int context_max = 16384;  // tokens of prompt and answer; costs head_dim * 4 bytes of rotation table each
  uint64_t seed = 1;        // of the weights

  int group() const { return heads / kv_heads; }
  int q_dim() const { return heads * head_dim; }
  int kv_dim() const { return kv_heads * head_dim; }
  int64_t kv_bytes_per_token() const { return int64_t{2} * layers * kv_dim() * 2; }

  // Errors: InvalidArgument, naming the field.
  absl::Status Validate() const;
  // Names the weights: equal for two configurations only if they compute the same.
  std::string Revision() const;
};

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_CONFIG_H_
