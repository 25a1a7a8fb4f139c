#include "storage/base/chunk_key.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>

#include "storage/base/check.h"

namespace kvist {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie in memory");

constexpr std::string_view kScheme("kvist.chunk.1\0", 14);

}  // namespace

struct KeyChain::Hasher {
  // EVP_sha256() would be looked up again by every Init; a fetched digest is not (1.25x of the whole chain, reference/limits.md).
  EVP_MD* md = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  bool fresh = true;

  ~Hasher() {
    EVP_MD_CTX_free(context);
    EVP_MD_free(md);
  }
  void Init() {
    KVIST_CHECK(EVP_DigestInit_ex2(context, fresh ? md : nullptr, nullptr) == 1);
    fresh = false;
  }
  void Update(const void* data, size_t n) { KVIST_CHECK(EVP_DigestUpdate(context, data, n) == 1); }
  void UpdateLengthPrefixed(std::string_view s) {
    const auto n = static_cast<uint32_t>(s.size());
    Update(&n, sizeof n);
    Update(s.data(), s.size());
  }
  void Final(ChunkKey* key) {
    unsigned size = 0;
    KVIST_CHECK(EVP_DigestFinal_ex(context, key->bytes.data(), &size) == 1 && size == key->bytes.size());
  }
};

KeyChain::KeyChain(Tokens chunk_tokens, Root root) : chunk_tokens_(chunk_tokens), hasher_(std::make_unique<Hasher>()) {
  KVIST_CHECK(chunk_tokens.value > 0);
  KVIST_CHECK(hasher_->md != nullptr && hasher_->context != nullptr);
  hasher_->Init();
  hasher_->Update(kScheme.data(), kScheme.size());
  hasher_->UpdateLengthPrefixed(root.lora);
  hasher_->UpdateLengthPrefixed(root.salt);
  hasher_->Final(&parent_);
}

KeyChain::~KeyChain() = default;
KeyChain::KeyChain(KeyChain&&) noexcept = default;
KeyChain& KeyChain::operator=(KeyChain&&) noexcept = default;

void KeyChain::Append(std::span<const uint32_t> tokens) {
  token_count_ += tokens.size();
  while (!tokens.empty()) {
    if (filled_ == 0) Begin();
    const size_t n = std::min<size_t>(tokens.size(), chunk_tokens_.value - filled_);
    hasher_->Update(tokens.data(), n * sizeof(uint32_t));
    filled_ += static_cast<uint32_t>(n);
    tokens = tokens.subspan(n);
    if (filled_ == chunk_tokens_.value) Seal();
  }
}

void KeyChain::Bind(std::string_view extra_key) {
  const auto n = static_cast<uint32_t>(extra_key.size());
  const auto* prefix = reinterpret_cast<const std::byte*>(&n);
  const auto* body = reinterpret_cast<const std::byte*>(extra_key.data());
  extra_.insert(extra_.end(), prefix, prefix + sizeof n);
  extra_.insert(extra_.end(), body, body + extra_key.size());
  ++extra_count_;
}

void KeyChain::Begin() {
  hasher_->Init();
  hasher_->Update(parent_.bytes.data(), parent_.bytes.size());
}

void KeyChain::Seal() {
  if (extra_count_ > 0) {
    hasher_->Update(extra_.data(), extra_.size());
    hasher_->Update(&extra_count_, sizeof extra_count_);
    extra_.clear();
    extra_count_ = 0;
  }
  hasher_->Final(&parent_);
  keys_.push_back(parent_);
  filled_ = 0;
}

}  // namespace kvist
