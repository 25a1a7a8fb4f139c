#include "storage/ssd/sealer.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "storage/base/check.h"

namespace kvist::ssd {

struct Sealer::Context {
  EVP_MAC* mac = nullptr;
  EVP_MAC_CTX* keyed = nullptr;
  Secret secret{};
  bool has_secret = false;

  ~Context() {
    EVP_MAC_CTX_free(keyed);
    EVP_MAC_free(mac);
    OPENSSL_cleanse(secret.data(), secret.size());
  }
};

// A process without HMAC-SHA-256 or memory for its context can't have a tier of this kind, and OpenSSL without it isn't one.
Sealer::Sealer() : context_(std::make_unique<Context>()) {
  context_->mac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  KVIST_CHECK(context_->mac != nullptr);
  context_->keyed = EVP_MAC_CTX_new(context_->mac);
  KVIST_CHECK(context_->keyed != nullptr);
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                               OSSL_PARAM_construct_end()};
  KVIST_CHECK(EVP_MAC_CTX_set_params(context_->keyed, params) == 1);
}
Sealer::~Sealer() = default;
Sealer::Sealer(Sealer&&) noexcept = default;
Sealer& Sealer::operator=(Sealer&&) noexcept = default;

Seal Sealer::Of(const Secret& secret, std::span<const std::byte> first, std::span<const std::byte> second) {
  const bool same = context_->has_secret && context_->secret == secret;
  // Without a key it begins anew with the one that it has, and needn't hash that again.
  KVIST_CHECK(EVP_MAC_init(context_->keyed, same ? nullptr : secret.data(), same ? 0 : secret.size(), nullptr) == 1);
  context_->secret = secret;
  context_->has_secret = true;
  KVIST_CHECK(EVP_MAC_update(context_->keyed, reinterpret_cast<const unsigned char*>(first.data()), first.size()) == 1);
  KVIST_CHECK(EVP_MAC_update(context_->keyed, reinterpret_cast<const unsigned char*>(second.data()), second.size()) == 1);
  Seal seal;
  size_t length = 0;
  KVIST_CHECK(EVP_MAC_final(context_->keyed, seal.data(), &length, seal.size()) == 1 && length == seal.size());
  return seal;
}

Secret DrawSecret() {
  Secret secret;
  KVIST_CHECK(RAND_bytes(secret.data(), static_cast<int>(secret.size())) == 1);
  return secret;
}

}  // namespace kvist::ssd
