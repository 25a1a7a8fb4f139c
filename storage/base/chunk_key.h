#ifndef KVIST_STORAGE_BASE_CHUNK_KEY_H_
#define KVIST_STORAGE_BASE_CHUNK_KEY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/units.h"

namespace kvist {

// The keys of one request's chunks, computed as its tokens become known.
//
// Chunk i is named by its whole prefix:
//   root  = SHA-256("kvist.chunk.1\0" | u32 len(lora) | lora | u32 len(salt) | salt)
//   key_i = SHA-256(key_{i-1} or root | u32 tokens in little endian | extra keys)
// where `extra keys` are the u32-length-prefixed values bound while the chunk was filling, followed by their u32 count, and
// are absent (no bytes at all) when there are none. The input lengths are thus unambiguous: without extra keys it is exactly
// 32 + 4 * chunk_tokens bytes; with them it is longer by at least 8.
//
// Seedless: the same in every process and on every node. Holds neither space nor tenant; the index is by (space, group, key).
//
// Lifecycle: create, then Append/Bind in the order of the prompt; keys() grows. Copyable state is not offered: one per request.
// Threads:   one at a time.
// Cost:      1.08 of one SHA-256 over all the tokens (a parent makes 17 blocks of 16); about 2.5 ns a token with SHA-NI.
class KeyChain {
 public:
  // `salt` separates requests that must not share (vLLM's cache_salt); `lora` names the adapter. Both may be empty.
  struct Root {
    std::string_view lora;
    std::string_view salt;
  };
  KeyChain(Tokens chunk_tokens, Root root);
  ~KeyChain();
  KeyChain(KeyChain&&) noexcept;
  KeyChain& operator=(KeyChain&&) noexcept;

  // Adds the next tokens of the prompt or of the answer. Tokens past the last full chunk wait for the rest of theirs.
  void Append(std::span<const uint32_t> tokens);

  // Binds something that is not a token (an image's hash) to the chunk that is filling now: call it before the Append that
  // completes that chunk.
  void Bind(std::string_view extra_key);

  // Keys of all full chunks so far, in order. Valid until the next Append.
  std::span<const ChunkKey> keys() const { return keys_; }
  Tokens chunk_tokens() const { return chunk_tokens_; }
  // Tokens appended so far, full chunks and tail.
  uint64_t token_count() const { return token_count_; }

 private:
  class Hasher;  // the message that is filling, and OpenSSL's context
  Tokens chunk_tokens_;
  std::unique_ptr<Hasher> hasher_;
  uint64_t token_count_ = 0;
  uint32_t filled_ = 0;           // tokens of the chunk that is filling
  std::vector<std::byte> extra_;  // encoded extra keys of that chunk
  uint32_t extra_count_ = 0;
  std::vector<ChunkKey> keys_;
};

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_CHUNK_KEY_H_
