#ifndef KVIST_STORAGE_REMOTE_SEALED_OBJECT_H_
#define KVIST_STORAGE_REMOTE_SEALED_OBJECT_H_

#include <cstddef>
#include <span>
#include <string>

#include "storage/remote/object_header.h"
#include "storage/remote/object_name.h"
#include "storage/remote/verdict.h"

namespace kvist::remote {

// Makes objects of shards, and checks what came back before anybody believes it.
//
// Threads: any; it has no state but its secrets. Cost: a pass of XXH3 over the body, with encryption one of AES-256-GCM too; the caller's thread
//   computes (tests/bench, the rows "sealed").
class ObjectSealer {
 public:
  struct Options {
    Secret secret{};  // all others are derived from it, each for one use
    // Bodies are encrypted by AES-256-GCM with random 96-bit nonces, the identity, epoch, length and label being authenticated with them. At most
    // 2^32 objects should be written with one secret (NIST SP 800-38D, section 8.3).
    bool encrypt = false;
  };
  explicit ObjectSealer(const Options& options);
  ~ObjectSealer();
  ObjectSealer(const ObjectSealer&) = delete;
  ObjectSealer& operator=(const ObjectSealer&) = delete;

  bool encrypts() const { return encrypt_; }
  std::string NameOf(const Identity& identity) const { return ObjectName(names_, identity); }

  struct Said {
    uint64_t epoch = 0;
    Label label{};
  };
  // The header of an object with this body. When it encrypts, `sealed`, as long as the body, gets what is to be stored in its place;
  // else it isn't touched.
  ObjectHeader Seal(const Identity& identity, const Said& said, std::span<const std::byte> body,
                    std::span<std::byte> sealed) const;

  // Holds what was read against what is wanted. kGood: the first `header->body_bytes` of the body are the shard, decrypted in place. Else what
  // the body's bytes are is unknown. `head` is what was read of a header, all of it or less.
  Verdict Open(const Identity& identity, uint64_t epoch_min, std::span<const std::byte> head, std::span<std::byte> body,
               ObjectHeader* header) const;

 private:
  const bool encrypt_;
  Secret names_;
  Secret identities_;
  Secret seals_;
  Secret bodies_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_SEALED_OBJECT_H_
