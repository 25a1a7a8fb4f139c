#ifndef KVIST_STORAGE_REMOTE_OBJECT_NAME_H_
#define KVIST_STORAGE_REMOTE_OBJECT_NAME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "storage/base/ids.h"

// How a shard is called outside of the node. Whoever reads the store, or its access log, learns neither which tokens lie there nor whose:
// names are HMAC-SHA256s, and nodes find each other's objects because they have the same secret from their configuration.
namespace kvist::remote {

// 256 bits from the configuration, the same on all nodes that share a store.
using Secret = std::array<uint8_t, 32>;

// Which shard is meant.
struct Identity {
  SpaceDigest space;
  ChunkKey key;
  GroupId group;
  Rank shard;
};

// The bytes that identities are hashed and authenticated as: space, key, group, shard; numbers little-endian.
using IdentityBytes = std::array<std::byte, 68>;
IdentityBytes BytesOf(const Identity& identity);

// HMAC-SHA256 of `first` and `second`, one behind the other. Threads: any.
std::array<uint8_t, 32> Hmac(const Secret& secret, std::span<const std::byte> first, std::span<const std::byte> second = {});

// A secret for one use only, so that no use's results say anything of another's.
Secret DeriveSecret(const Secret& secret, std::string_view use);

// The name: 64 hexadecimal digits. `secret` is derived for names.
std::string ObjectName(const Secret& secret, const Identity& identity);

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_OBJECT_NAME_H_
