#ifndef KVIST_DAEMON_CONTROLLER_FINGERPRINT_H_
#define KVIST_DAEMON_CONTROLLER_FINGERPRINT_H_

#include <cstdint>

#include "storage/base/ids.h"

namespace kvist::controller {

// Stands for (space, group, key) in the directory: 64 bits of a keyed hash. The directory keeps no keys.
//
// Two chunks may have the same one; then the directory takes them for one. It costs a wrong routing hint and nothing else: the node that is
// asked looks for the whole key. With 64 nodes x 1,000,000 chunks, none shared (2^26 fingerprints), a key that nobody has is taken for
// another's with a probability of 2^-38, a lookup of 512 such keys tells something wrong with 2^-29; that any two of all the chunks have one
// fingerprint: 2^-13. The seed is the directory's own, drawn at random, for opaque keys are chosen by clients: nobody can choose
// collisions, nor fill one place of the table.
struct Fingerprint {
  uint64_t seed[4];
  // `space` is the directory's number.
  uint64_t operator()(SpaceId space, GroupId group, const ChunkKey& key) const {
    const uint64_t where = uint64_t{space.value} << 16 | group.value;
    uint64_t h =
        Fold(key.word(0) ^ seed[0], key.word(1) ^ seed[1]) ^ Fold(key.word(2) ^ seed[2] ^ where, key.word(3) ^ seed[3]);
    h ^= h >> 32;  // one to one from here on: shard and place are its first bits
    h *= seed[1] | 1;
    h ^= h >> 29;
    return h;
  }

 private:
  static uint64_t Fold(uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_FINGERPRINT_H_
