#ifndef KVIST_TESTS_UNIT_TINYLLM_FAKE_KVIST_H_
#define KVIST_TESTS_UNIT_TINYLLM_FAKE_KVIST_H_

#include <kvist/kvist.h>

#include <cstddef>

// The C ABI of kvist in the test's own process, as unpleasant as the contract allows: the definitions of fake_kvist.cc take
// the place of the library's. One space, one scheduler, one worker. Copies happen as late as they may: a load's bytes come
// with the poll that ends it, and a store's pages are compared then with what they were at its start.
namespace fake_kvist {

struct Behaviour {
  bool away = false;                    // lookups miss, nothing starts
  int polls_until_end = 1;              // of each op
  kvist_status load_result = KVIST_OK;  // other than OK: no chunk arrives, and the pages are scribbled over
  int polls_until_release = 0;          // after the end of a failed load; its pages are scribbled over as long as that
  bool refuse_loads = false;            // kvist_load fails
  bool no_room = false;                 // kvist_alloc fails
};

struct Observed {
  size_t chunks = 0;  // held
  size_t ops = 0;     // not yet forgotten
  size_t leases = 0;
  size_t allocations = 0;
  size_t swaps_out = 0, swaps_in = 0;
  size_t loads = 0;
  size_t cancelled = 0;
  size_t probes_found = 0;  // pages written by write_page that were found by the description
  size_t probes_missed = 0;
  size_t changed_under_store = 0;  // stores whose pages changed before their end: the engine's fault
};

// Forgets everything; the next engine starts from nothing.
void Reset();
Behaviour& behaviour();
Observed observed();

}  // namespace fake_kvist

#endif  // KVIST_TESTS_UNIT_TINYLLM_FAKE_KVIST_H_
