#ifndef KVIST_STORAGE_REMOTE_BODY_CIPHER_H_
#define KVIST_STORAGE_REMOTE_BODY_CIPHER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "storage/remote/object_name.h"

// AES-256-GCM of whole bodies. Threads: any.
namespace kvist::remote {

using Nonce = std::array<uint8_t, 12>;
using Tag = std::array<uint8_t, 16>;

// Fresh from the system's generator.
Nonce DrawNonce();

// `out` is as long as `in`, and may be the same.
Tag Encrypt(const Secret& secret, const Nonce& nonce, std::span<const std::byte> associated, std::span<const std::byte> in,
            std::span<std::byte> out);

// In place. false: it isn't what was encrypted with this secret, nonce and associated data; what `body` holds then is nothing.
[[nodiscard]] bool Decrypt(const Secret& secret, const Nonce& nonce, const Tag& tag, std::span<const std::byte> associated,
                           std::span<std::byte> body);

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_BODY_CIPHER_H_
