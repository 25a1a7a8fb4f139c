#include "storage/remote/body_cipher.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <memory>

#include "storage/base/check.h"

namespace kvist::remote {
namespace {

constexpr size_t kCipherPiece = size_t{1} << 30;  // OpenSSL's lengths are ints

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

Context Begin(const Secret& secret, const Nonce& nonce, std::span<const std::byte> associated, int encrypt) {
  Context context(EVP_CIPHER_CTX_new());
  KVIST_CHECK(context != nullptr);
  // 96 bits are GCM's own length of nonces.
  KVIST_CHECK(EVP_CipherInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, secret.data(), nonce.data(), encrypt) == 1);
  int length = 0;
  KVIST_CHECK(EVP_CipherUpdate(context.get(), nullptr, &length, reinterpret_cast<const unsigned char*>(associated.data()),
                               static_cast<int>(associated.size())) == 1);
  return context;
}

void Update(EVP_CIPHER_CTX* context, std::span<const std::byte> in, std::span<std::byte> out) {
  for (size_t at = 0; at < in.size(); at += kCipherPiece) {
    const size_t piece = std::min(kCipherPiece, in.size() - at);
    int length = 0;
    KVIST_CHECK(EVP_CipherUpdate(context, reinterpret_cast<unsigned char*>(out.data() + at), &length,
                                 reinterpret_cast<const unsigned char*>(in.data() + at), static_cast<int>(piece)) == 1);
    KVIST_CHECK(static_cast<size_t>(length) == piece);
  }
}

}  // namespace

Nonce DrawNonce() {
  Nonce nonce;
  KVIST_CHECK(RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) == 1);
  return nonce;
}

Tag Encrypt(const Secret& secret, const Nonce& nonce, std::span<const std::byte> associated, std::span<const std::byte> in,
            std::span<std::byte> out) {
  KVIST_CHECK(in.size() == out.size());
  const Context context = Begin(secret, nonce, associated, 1);
  Update(context.get(), in, out);
  unsigned char none[16];
  int length = 0;
  KVIST_CHECK(EVP_CipherFinal_ex(context.get(), none, &length) == 1 && length == 0);
  Tag tag;
  KVIST_CHECK(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, static_cast<int>(tag.size()), tag.data()) == 1);
  return tag;
}

bool Decrypt(const Secret& secret, const Nonce& nonce, const Tag& tag, std::span<const std::byte> associated,
             std::span<std::byte> body) {
  const Context context = Begin(secret, nonce, associated, 0);
  Update(context.get(), body, body);
  Tag expected = tag;
  KVIST_CHECK(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, static_cast<int>(expected.size()), expected.data()) ==
              1);
  unsigned char none[16];
  int length = 0;
  return EVP_CipherFinal_ex(context.get(), none, &length) == 1;
}

}  // namespace kvist::remote
