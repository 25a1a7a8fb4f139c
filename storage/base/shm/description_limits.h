#ifndef KVIST_STORAGE_BASE_SHM_DESCRIPTION_LIMITS_H_
#define KVIST_STORAGE_BASE_SHM_DESCRIPTION_LIMITS_H_

#include <cstdint>

#include "storage/base/shm/layout.h"

// What an engine may say of its KV at most. The connector refuses more before it does anything with it (there may be no daemon to ask), the
// daemon because it believes no connector. Far above any engine's; the products that either computes fit into 64 bits.
namespace kvist::shm {

inline constexpr uint64_t kNameBytesMax = 255;
inline constexpr uint64_t kLayersMax = 448;  // of a group: their checksums fit into a slot's header place
inline constexpr uint64_t kSegmentBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kPageBytesMax = uint64_t{1} << 30;  // in one layer
inline constexpr uint64_t kTokensMax = uint64_t{1} << 16;     // of a page or a chunk
inline constexpr uint64_t kWindowTokensMax = uint64_t{1} << 30;
inline constexpr uint64_t kPagesPerChunkMax = kPagesMax / kKeysMax;
inline constexpr uint64_t kShardBytesMax = uint64_t{1} << 34;  // a chunk on one rank
inline constexpr uint64_t kDeviceRegionsMax = 512;
inline constexpr uint64_t kOtherRegionsMax = 1024;  // that are no memfds: a Hello with more doesn't fit into its packet

}  // namespace kvist::shm

#endif  // KVIST_STORAGE_BASE_SHM_DESCRIPTION_LIMITS_H_
