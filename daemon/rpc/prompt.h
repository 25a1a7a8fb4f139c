#ifndef KVIST_DAEMON_RPC_PROMPT_H_
#define KVIST_DAEMON_RPC_PROMPT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "storage/base/ids.h"

namespace kvist::rpc {

// Spaces that fit all that is given.
struct SpaceFilter {
  std::string digest;  // lower-case hex, the first digits
  std::string model;
  std::string tenant;

  bool Fits(const std::string& of_digest, const std::string& of_model, const std::string& of_tenant) const;
};

// A prompt, by its tokens or by the keys of its chunks.
struct Prompt {
  static constexpr size_t kChunksMax = 4096;                  // core::Core::kKeysMax
  static constexpr const char* kKeyScheme = "kvist.chunk.1";  // storage/base/chunk_key.h
  static constexpr size_t kNameMax = 65536;                   // of a salt or adapter; far above any

  std::vector<uint32_t> tokens;
  std::string salt, lora;
  std::vector<ChunkKey> keys;  // instead

  // The keys of its first full chunks, kChunksMax at most. Cost: that of a KeyChain over the tokens.
  std::vector<ChunkKey> KeysOf(uint32_t chunk_tokens) const;
};

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_PROMPT_H_
