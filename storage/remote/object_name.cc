#include "storage/remote/object_name.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "storage/base/check.h"

namespace kvist::remote {

IdentityBytes BytesOf(const Identity& identity) {
  IdentityBytes bytes;
  std::memcpy(bytes.data(), identity.space.bytes.data(), 32);
  std::memcpy(bytes.data() + 32, identity.key.bytes.data(), 32);
  std::memcpy(bytes.data() + 64, &identity.group.value, 2);
  std::memcpy(bytes.data() + 66, &identity.shard.value, 2);
  return bytes;
}

// An OpenSSL that has no HMAC-SHA256, or no memory for it, isn't one that a tier could be made with.
std::array<uint8_t, 32> Hmac(const Secret& secret, std::span<const std::byte> first, std::span<const std::byte> second) {
  static EVP_MAC* const mac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  KVIST_CHECK(mac != nullptr);
  EVP_MAC_CTX* const context = EVP_MAC_CTX_new(mac);
  KVIST_CHECK(context != nullptr);
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                               OSSL_PARAM_construct_end()};
  std::array<uint8_t, 32> result;
  size_t length = 0;
  KVIST_CHECK(EVP_MAC_init(context, secret.data(), secret.size(), params) == 1);
  KVIST_CHECK(EVP_MAC_update(context, reinterpret_cast<const unsigned char*>(first.data()), first.size()) == 1);
  KVIST_CHECK(EVP_MAC_update(context, reinterpret_cast<const unsigned char*>(second.data()), second.size()) == 1);
  KVIST_CHECK(EVP_MAC_final(context, result.data(), &length, result.size()) == 1 && length == result.size());
  EVP_MAC_CTX_free(context);
  return result;
}

Secret DeriveSecret(const Secret& secret, std::string_view use) { return Hmac(secret, std::as_bytes(std::span(use))); }

std::string ObjectName(const Secret& secret, const Identity& identity) {
  const auto digest = Hmac(secret, BytesOf(identity));
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

}  // namespace kvist::remote
