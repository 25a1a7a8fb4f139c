#ifndef KVIST_TESTS_SUPPORT_FAKE_KVIST_H_
#define KVIST_TESTS_SUPPORT_FAKE_KVIST_H_

#include <kvist/kvist.h>

#include <cstddef>
#include <cstdint>
#include <functional>

// The C ABI of kvist in the test's own process, as unpleasant as the contract allows, and beyond it when it is told to lie: where
// fake_kvist.cc is among a test's sources its definitions take the place of the library's. Forgets nothing by itself. One space,
// one scheduler, one worker, one cache group. Copies happen as late as they may: a load's bytes come with the poll (or wait) that
// ends it, and a store's pages are compared then with what they were at its start.
//
// Threads: one.
namespace fake_kvist {

// What loads bring that say OK. A piece is one segment of a page in one layer.
enum class Lie {
  kNone,
  kFlippedByte,   // the last byte of the first piece of each load has another bit
  kOtherChunk,    // each load brings the bytes of the first chunk ever stored, for all its chunks
  kMissingPiece,  // the first piece of each load is not written
  kNotOneByte,    // nothing is written
};

struct Behaviour {
  bool away = false;                    // lookups miss, nothing starts
  int polls_until_end = 1;              // of each op
  kvist_status load_result = KVIST_OK;  // other than OK: no chunk arrives, and the pages are scribbled over
  int polls_until_release = 0;          // after the end of a failed load; its pages are scribbled over as long as that
  bool refuse_loads = false;            // kvist_load fails
  bool no_room = false;                 // kvist_alloc fails
  Lie lie = Lie::kNone;
  kvist_status lookup = KVIST_OK;          // of kvist_lookup
  kvist_status store_call = KVIST_OK;      // of kvist_store itself
  uint32_t chunks_max = UINT32_MAX;        // more are refused
  uint32_t lease_chunks_max = UINT32_MAX;  // hits that are longer, past what the engine has, get no lease
  std::function<void()> on_swap_out = {};  // called by kvist_swap_out
};

struct Observed {
  size_t chunks = 0;  // held
  size_t ops = 0;     // not yet forgotten
  size_t leases = 0;
  size_t allocations = 0;
  size_t swaps_out = 0, swaps_in = 0;
  size_t prefills = 0;  // that were reported
  size_t hinted = 0;    // keys
  int stop_reason = 0;  // of the last hint
  size_t loads = 0;
  size_t cancelled = 0;
  size_t probes_found = 0;  // pages written by write_page that were found by the description
  size_t probes_missed = 0;
  size_t changed_under_store = 0;  // stores whose pages changed before their end: the engine's fault
};

// Forgets everything; the next engine starts from nothing.
void Reset(Behaviour behaviour = {});
// From now on.
Behaviour& behaviour();
Observed observed();

}  // namespace fake_kvist

#endif  // KVIST_TESTS_SUPPORT_FAKE_KVIST_H_
