#include "storage/remote/sealed_object.h"

#include <openssl/crypto.h>

#include <cstring>
#include <vector>

#include "storage/base/check.h"
#include "storage/base/xxh3.h"
#include "storage/remote/body_cipher.h"

namespace kvist::remote {
namespace {

std::span<const std::byte> BytesBefore(const ObjectHeader& header, size_t end) {
  return std::as_bytes(std::span(&header, 1)).first(end);
}

uint64_t ChecksumOf(const ObjectHeader& header) { return XXH3_64bits(&header, offsetof(ObjectHeader, header_checksum)); }

// What is authenticated beside an encrypted body.
std::vector<std::byte> AssociatedWith(const Identity& identity, const ObjectHeader& header) {
  const IdentityBytes bytes = BytesOf(identity);
  std::vector<std::byte> associated(bytes.begin(), bytes.end());
  const auto add = [&associated](const void* from, size_t size) {
    const auto* first = static_cast<const std::byte*>(from);
    associated.insert(associated.end(), first, first + size);
  };
  add(&header.version, sizeof header.version);
  add(&header.epoch, sizeof header.epoch);
  add(&header.body_bytes, sizeof header.body_bytes);
  add(header.label.data(), header.label.size());
  return associated;
}

}  // namespace

ObjectSealer::ObjectSealer(const Options& options)
    : encrypt_(options.encrypt),
      names_(DeriveSecret(options.secret, "kvist object names 1")),
      identities_(DeriveSecret(options.secret, "kvist object identities 1")),
      seals_(DeriveSecret(options.secret, "kvist object seals 1")),
      bodies_(DeriveSecret(options.secret, "kvist object bodies 1")) {}

ObjectSealer::~ObjectSealer() {
  for (Secret* secret : {&names_, &identities_, &seals_, &bodies_}) OPENSSL_cleanse(secret->data(), secret->size());
}

ObjectHeader ObjectSealer::Seal(const Identity& identity, const Said& said, std::span<const std::byte> body,
                                std::span<std::byte> sealed) const {
  ObjectHeader header{};
  header.magic = kObjectMagic;
  header.version = kObjectVersion;
  header.epoch = said.epoch;
  header.body_bytes = body.size();
  header.identity = Hmac(identities_, BytesOf(identity));
  header.label = said.label;
  if (encrypt_) {
    header.cipher = Cipher::kAes256Gcm;
    header.nonce = DrawNonce();
    header.tag = Encrypt(bodies_, header.nonce, AssociatedWith(identity, header), body, sealed);
  }
  header.checksum = encrypt_ ? XXH3_64bits(sealed.data(), sealed.size()) : Xxh3OfFar(body, 0);
  header.header_checksum = ChecksumOf(header);
  header.seal = Hmac(seals_, BytesBefore(header, offsetof(ObjectHeader, seal)));
  return header;
}

Verdict ObjectSealer::Open(const Identity& identity, uint64_t epoch_min, std::span<const std::byte> head,
                           std::span<std::byte> body, ObjectHeader* header) const {
  if (head.size() < sizeof *header) return Verdict::kTruncated;
  std::memcpy(header, head.data(), sizeof *header);
  if (header->magic != kObjectMagic) return Verdict::kNoObject;
  if (header->version != kObjectVersion) return Verdict::kVersion;
  if (header->header_checksum != ChecksumOf(*header)) return Verdict::kDamagedHeader;
  const auto seal = Hmac(seals_, BytesBefore(*header, offsetof(ObjectHeader, seal)));
  if (CRYPTO_memcmp(seal.data(), header->seal.data(), seal.size()) != 0) return Verdict::kForeign;
  if (header->identity != Hmac(identities_, BytesOf(identity))) return Verdict::kOther;
  if (header->epoch < epoch_min) return Verdict::kStale;
  if (header->cipher != (encrypt_ ? Cipher::kAes256Gcm : Cipher::kNone)) return Verdict::kCipher;
  if (body.size() < header->body_bytes) return Verdict::kTruncated;
  if (body.size() > header->body_bytes) return Verdict::kTooLong;
  if (XXH3_64bits(body.data(), body.size()) != header->checksum) return Verdict::kCorrupt;
  if (encrypt_ && !Decrypt(bodies_, header->nonce, header->tag, AssociatedWith(identity, *header), body))
    return Verdict::kForged;
  return Verdict::kGood;
}

}  // namespace kvist::remote
