#ifndef KVIST_DAEMON_CORE_CORE_STATUS_H_
#define KVIST_DAEMON_CORE_CORE_STATUS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/events.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

namespace kvist::core {

// What `kvistctl status` shows of the core.
struct CoreStatus {
  struct SpaceRow {
    SpaceDigest digest;
    std::string tenant;
    std::string model;
    uint64_t chunks = 0;  // sealed
    Bytes bytes{};        // of slots, sealed and filling
    Bytes chunk_bytes{};  // of slots of one chunk, of the group where that is most
  };
  struct TenantRow {
    std::string name;
    Bytes quota{};  // in force: the pool's capacity when it has none, or a larger one
    Bytes used{};
    uint64_t evictions = 0;
  };
  std::vector<SpaceRow> spaces;
  std::vector<TenantRow> tenants;                     // that have come
  std::vector<std::pair<std::string, Bytes>> quotas;  // that are set, as they were given
  uint64_t chunks = 0;                                // places in use, of any state
  uint64_t sealed = 0;
  uint64_t filling = 0;
  uint64_t slots_in_doubt = 0;  // that rest after a core before this one (TakeOver)
  uint64_t leases = 0;
  uint64_t pins = 0;
  uint64_t allocations = 0;
  Bytes private_bytes{};  // of slots, also of allocations that were freed under copies
  uint64_t ops = 0;
  uint64_t sessions = 0;
  uint64_t instances = 0;
  uint64_t evictions = 0;    // since the start, as are the counts below
  uint64_t slots_moved = 0;  // so that slabs were emptied for slots of another size (Vacating)
  uint64_t slabs_emptied = 0;
  uint64_t lookups = 0;
  uint64_t lookup_chunks_asked = 0;
  uint64_t lookup_chunks_hit = 0;
  uint64_t chunks_stored = 0;
  uint64_t chunks_loaded = 0;
  uint64_t stores_refused = 0;     // chunks: no room
  uint64_t chunks_corrupt = 0;     // dropped, because their slots held other bytes than were stored
  uint64_t loads_waited = 0;       // chunks that were still being read from below when they were to be loaded
  uint64_t chunks_recomputed = 0;  // that were there, below, but are computed sooner than read (gate.cc)
  uint64_t below = 0;              // chunks that are in no slots
  EncodedOnDisk encoded;
  uint64_t chunks_written = 0;  // since the start, as are those below
  uint64_t chunks_read = 0;
  uint64_t writes_failed = 0;
  uint64_t reads_failed = 0;
  uint64_t chunks_corrupt_on_disk =
      0;                          // what lay there was something else: some reads that failed, and what scrubbing found
  uint64_t chunks_moved = 0;      // written again, because their segment was to be used again
  uint64_t chunks_recoded = 0;    // written again, encoded another way, because somebody asked for that
  uint64_t chunks_reclaimed = 0;  // given up for that
  uint64_t chunks_found = 0;      // at the start
  uint64_t demotions = 0;         // of the evictions: chunks that are on disk since
  // Of the remote store, since the start but for `remote_waiting`.
  uint64_t remote_asked = 0;         // lookups that it was asked for
  uint64_t remote_unanswered = 0;    // of those: that went on without its answer
  uint64_t remote_chunks_found = 0;  // that weren't known here
  uint64_t remote_chunks_read = 0;
  uint64_t remote_reads_failed = 0;
  uint64_t remote_chunks_missing = 0;  // of those: the store said that it had them, and hadn't
  uint64_t remote_chunks_corrupt = 0;  // and what was there was something else
  uint64_t remote_chunks_written = 0;
  uint64_t remote_writes_failed = 0;
  uint64_t remote_chunks_dropped = 0;  // not written: too many waited, or evicted before their turn
  uint64_t remote_waiting = 0;         // chunks, to be written
  Bytes index_bytes{};
};

// One pin.
struct PinRow {
  uint64_t number = 0;  // names it while the daemon lives
  SpaceId space;
  PinName name;
  uint32_t chunks = 0;  // that are kept, from the first on
  Bytes bytes{};
  uint64_t count = 0;
  absl::Duration age;
  absl::Duration lasts;  // until it ends by itself; infinite: it doesn't
};

struct PinPage {
  std::vector<PinRow> rows;
  uint64_t next = 0;  // ask for the rest after this number; 0: there is none
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_CORE_STATUS_H_
