#ifndef KVIST_TESTS_UNIT_REPLAY_LYING_KVIST_H_
#define KVIST_TESTS_UNIT_REPLAY_LYING_KVIST_H_

#include <kvist/kvist.h>

#include <cstddef>
#include <cstdint>

// The C ABI of kvist in the test's own process, by a cache that forgets nothing and lies when it is told to: the definitions of
// lying_kvist.cc take the place of the library's. One space, one instance, one thread.
namespace lying_kvist {

enum class Lie {
  kNone,
  kFlippedByte,   // the last byte of the first piece of each load has another bit
  kOtherChunk,    // each load brings the bytes of the first chunk ever stored, for all its chunks
  kMissingPiece,  // the first piece of each load is not written
  kNotOneByte,    // loads say OK and write nothing
};

struct Behaviour {
  Lie lie = Lie::kNone;
  kvist_status lookup = KVIST_OK;
  kvist_status load = KVIST_OK;            // of the operation
  kvist_status store_call = KVIST_OK;      // of kvist_store itself
  uint32_t chunks_max = UINT32_MAX;        // more are refused
  uint32_t lease_chunks_max = UINT32_MAX;  // longer hits get no lease
};

// Forgets everything.
void Reset(Behaviour behaviour);
// From now on.
Behaviour& behaviour();
size_t chunks();
size_t leases();

}  // namespace lying_kvist

#endif  // KVIST_TESTS_UNIT_REPLAY_LYING_KVIST_H_
