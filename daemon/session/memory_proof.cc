#include "daemon/session/memory_proof.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"

namespace kvist::session {

absl::StatusOr<MemoryProofs> MemoryProofs::Ephemeral() {
  Key key{};
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) return ErrnoStatus("getrandom", errno);
  return MemoryProofs(key);
}

absl::StatusOr<MemoryProofs> MemoryProofs::Open(const std::string& path) {
  Key key{};
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && errno == ENOENT) {
    KVIST_ASSIGN_OR_RETURN(const MemoryProofs made, Ephemeral());
    // Whole or not at all: a crash leaves another name.
    const std::string fresh = path + ".new";
    UniqueFd to(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!to) return ErrnoStatus(absl::StrCat("can't make ", fresh), errno);
    if (::write(to.get(), made.key_.data(), made.key_.size()) != static_cast<ssize_t>(made.key_.size()) ||
        ::fsync(to.get()) != 0 || ::rename(fresh.c_str(), path.c_str()) != 0) {
      return ErrnoStatus(absl::StrCat("can't write ", path), errno);
    }
    return made;
  }
  if (!file) return ErrnoStatus(absl::StrCat("can't read ", path), errno);
  unsigned char more = 0;
  if (::read(file.get(), key.data(), key.size()) != static_cast<ssize_t>(key.size()) || ::read(file.get(), &more, 1) != 0)
    return absl::DataLossError(absl::StrCat(path, " isn't the key that kvistd keeps there: remove it"));
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
