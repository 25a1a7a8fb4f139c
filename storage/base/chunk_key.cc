// OpenSSL's low-level SHA-256 is deprecated in favour of EVP, whose calls cost 60 ns a chunk: 1.17 of one long digest instead of 1.08.
#define OPENSSL_SUPPRESS_DEPRECATED

#include "storage/base/chunk_key.h"

#include <openssl/sha.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "storage/base/check.h"

namespace kvist {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie in memory");

constexpr std::string_view kScheme("kvist.chunk.1\0", 14);

}  // namespace

// The message of the chunk that is filling, as it is hashed:
//
//   | parent 32 | tokens 4 * chunk_tokens | padding |
//
// All messages without extra keys have one length, so SHA-256's padding (a one bit, zeros up to a multiple of 64 bytes, the length in
// bits) stands there once and for all: one Update over whole blocks, and the state after it is the digest. A chunk of very many tokens
// takes its memory as they come: whoever names its size need not have them.
class KeyChain::Hasher {
 public:
  Hasher(Tokens chunk_tokens, Root root) : tokens_bytes_(size_t{chunk_tokens.value} * sizeof(uint32_t)) {
    Grow(std::min(PaddedBytes(), kAtOnceBytes));

    Init();
    Update(kScheme.data(), kScheme.size());
    UpdateLengthPrefixed(root.lora);
    UpdateLengthPrefixed(root.salt);
    KVIST_CHECK(SHA256_Final(message_.data(), &context_) == 1);
  }

  void Put(uint32_t first, std::span<const uint32_t> tokens) {
    const size_t at = sizeof(ChunkKey) + size_t{first} * sizeof(uint32_t), end = at + tokens.size_bytes();
    // With room for more than it holds: so a full message has room for its padding.
    if (PaddedBytes(end) > message_.size()) Grow(std::min(PaddedBytes(), std::max(PaddedBytes(end), 2 * message_.size())));
    std::memcpy(message_.data() + at, tokens.data(), tokens.size_bytes());
  }

  // The key of the message, which becomes the parent of the next one.
  ChunkKey Seal(std::span<const std::byte> extra, uint32_t extra_count) {
    ChunkKey key;
    Init();
    if (extra_count == 0) {
      Update(message_.data(), message_.size());
      for (int i = 0; i < 8; ++i) {
        const uint32_t word = __builtin_bswap32(context_.h[i]);
        std::memcpy(key.bytes.data() + 4 * i, &word, sizeof word);
      }
    } else {
      Update(message_.data(), sizeof(ChunkKey) + tokens_bytes_);
      Update(extra.data(), extra.size());
      Update(&extra_count, sizeof extra_count);
      KVIST_CHECK(SHA256_Final(key.bytes.data(), &context_) == 1);
    }
    std::memcpy(message_.data(), key.bytes.data(), key.bytes.size());
    return key;
  }

 private:
  static constexpr size_t kAtOnceBytes = 64 << 10;  // of a message, whatever comes of it

  // Of a message of so many bytes, with its padding.
  static constexpr size_t PaddedBytes(size_t bytes) { return (bytes + 8) / 64 * 64 + 64; }
  size_t PaddedBytes() const { return PaddedBytes(sizeof(ChunkKey) + tokens_bytes_); }

  // When all of the message has room, its padding is there, too.
  void Grow(size_t size) {
    message_.resize(size);
    if (size < PaddedBytes()) return;
    const uint64_t bytes = sizeof(ChunkKey) + tokens_bytes_;
    message_[bytes] = 0x80;
    for (int i = 0; i < 8; ++i) message_[message_.size() - 1 - i] = static_cast<uint8_t>(bytes * 8 >> 8 * i);
  }
  void Init() { KVIST_CHECK(SHA256_Init(&context_) == 1); }
  void Update(const void* data, size_t n) { KVIST_CHECK(SHA256_Update(&context_, data, n) == 1); }
  void UpdateLengthPrefixed(std::string_view s) {
    const auto n = static_cast<uint32_t>(s.size());
    Update(&n, sizeof n);
    Update(s.data(), s.size());
  }

  SHA256_CTX context_;
  size_t tokens_bytes_;
  std::vector<uint8_t> message_;
};

KeyChain::KeyChain(Tokens chunk_tokens, Root root)
    : chunk_tokens_(chunk_tokens), hasher_(std::make_unique<Hasher>(chunk_tokens, root)) {
  KVIST_CHECK(chunk_tokens.value > 0);
}

KeyChain::~KeyChain() = default;
KeyChain::KeyChain(KeyChain&&) noexcept = default;
KeyChain& KeyChain::operator=(KeyChain&&) noexcept = default;

void KeyChain::Append(std::span<const uint32_t> tokens) {
  token_count_ += tokens.size();
  if (tokens.size() >= chunk_tokens_.value) keys_.reserve(keys_.size() + tokens.size() / chunk_tokens_.value + 1);
  while (!tokens.empty()) {
    const size_t n = std::min<size_t>(tokens.size(), chunk_tokens_.value - filled_);
    hasher_->Put(filled_, tokens.first(n));
    filled_ += static_cast<uint32_t>(n);
    tokens = tokens.subspan(n);
    if (filled_ < chunk_tokens_.value) break;
    keys_.push_back(hasher_->Seal(extra_, extra_count_));
    filled_ = 0;
    extra_.clear();
    extra_count_ = 0;
  }
}

void KeyChain::Bind(std::string_view extra_key) {
  const auto n = static_cast<uint32_t>(extra_key.size());
  const auto* prefix = reinterpret_cast<const std::byte*>(&n);
  const auto* body = reinterpret_cast<const std::byte*>(extra_key.data());
  extra_.reserve(extra_.size() + sizeof n + extra_key.size());  // both or neither
  extra_.insert(extra_.end(), prefix, prefix + sizeof n);
  extra_.insert(extra_.end(), body, body + extra_key.size());
  ++extra_count_;
}

}  // namespace kvist
