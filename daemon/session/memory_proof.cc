#include "daemon/session/memory_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/kept_file.h"
#include "storage/base/status.h"

namespace kvist::session {

absl::StatusOr<MemoryProofs> MemoryProofs::Ephemeral() {
  Key key{};
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) return ErrnoStatus("getrandom", errno);
  return MemoryProofs(key);
}

absl::StatusOr<MemoryProofs> MemoryProofs::Open(const std::string& path) {
  Key key{};
  const absl::StatusOr<std::string> kept = ReadKeptFile(path, key.size());
  if (absl::IsNotFound(kept.status())) {
    KVIST_ASSIGN_OR_RETURN(const MemoryProofs made, Ephemeral());
    KVIST_RETURN_IF_ERROR(KeepFile(path, {reinterpret_cast<const char*>(made.key_.data()), made.key_.size()}));
    return made;
  }
  if (!kept.ok() && !absl::IsResourceExhausted(kept.status())) return kept.status();
  if (!kept.ok() || kept->size() != key.size())
    return absl::DataLossError(absl::StrCat(path, " isn't the key that kvistd keeps there: remove it"));
  std::memcpy(key.data(), kept->data(), key.size());
  return MemoryProofs(key);
}

std::string MemoryProofs::Of(uid_t uid, pid_t pid, std::string_view description) const {
  const uint64_t numbers[] = {uid, static_cast<uint64_t>(pid), description.size()};
  std::string said("kvist.memory.1\0", 15);
  said.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
  said.append(description);
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  unsigned size = 0;
  KVIST_CHECK(::HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
                     reinterpret_cast<const unsigned char*>(said.data()), said.size(), mac.data(), &size) != nullptr);
  return {reinterpret_cast<const char*>(mac.data()), size};
}

bool MemoryProofs::Holds(std::string_view proof, uid_t uid, pid_t pid, std::string_view description) const {
  const std::string wanted = Of(uid, pid, description);
  return proof.size() == wanted.size() && CRYPTO_memcmp(proof.data(), wanted.data(), wanted.size()) == 0;
}

}  // namespace kvist::session
