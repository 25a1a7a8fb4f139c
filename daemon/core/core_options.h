#ifndef KVIST_DAEMON_CORE_CORE_OPTIONS_H_
#define KVIST_DAEMON_CORE_CORE_OPTIONS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/clean_reserve.h"
#include "daemon/core/eviction_policy.h"
#include "daemon/core/jobs.h"
#include "daemon/core/vacating.h"
#include "storage/base/units.h"

namespace kvist::core {

// What a core is told once; Core::Retune takes some of it over again.
struct CoreOptions {
  // A lease lasts at most so long. Longer: an engine that forgets to release keeps memory longer.
  absl::Duration lease_max = absl::Seconds(60);
  // A chunk that not all ranks have stored goes after so long. Longer: slots of a lost rank's chunks return later.
  absl::Duration fill_timeout = absl::Seconds(30);
  // Slots that a core before this one was filling when it ended rest so long (TakeOver). Longer: they return later; shorter than the time that
  // Linux gives a disk for one request before it resets it (30 s for NVMe and SCSI): what still comes may hit another chunk's bytes.
  absl::Duration doubt = absl::Seconds(60);
  // What one instance's leases may keep, as a share of the pool. Larger: one engine can keep others from storing.
  double lease_share = 0.5;
  // What one instance's private allocations may take, as a share of the pool, and a tenant's as a share of what it is entitled
  // to (Tenants::EntitledTo). Larger: a preempting engine can empty others' caches more.
  double private_share = 0.25;
  // What one tenant's pins may keep, as a share of what it is entitled to. Larger: less room for what isn't pinned.
  double pin_share = 0.5;
  // What one Tick does of long work (Core::work): clearing, reaping, ending what dead sessions held. Larger: that is faster,
  // requests behind it wait longer (10 to 100 ns each).
  uint32_t slice_work = 512;
  // What another event does before it refuses the rest or leaves it to Ticks; it comes to at most EventWorkBound. Larger: larger
  // requests are served whole in hybrid spaces and of many ranks, and others wait longer behind the largest.
  uint32_t event_work = 16384;
  static constexpr uint32_t kEventWorkMin = 16;
  // Of a tenant: chunks without bytes that stand for their keys because others hang on them (stores that failed). Larger: more
  // memory (100 bytes each).
  uint32_t ghosts_max = 65536;
  // Which chunks go when room is needed (eviction_policy.h).
  Eviction eviction = Eviction::kLhd;
  // Tenant -> the most bytes of slots it may use. Those that aren't named may use the whole pool, and give way as Tenants says.
  std::map<std::string, Bytes> quotas;
  // A disk below the slots; absent: there is none. What is said in bytes is of slots.
  struct Disk {
    // What each tenant has at hand in slots that are free or on disk, too, so that stores needn't wait or drop what isn't written.
    // Larger: bursts of stores lose less, and more is written that would have been used again before its turn came.
    Bytes reserve = MiB(256);
    // What is being written at a time. Larger: deeper queues; more slots can't be evicted meanwhile.
    Bytes writing = MiB(64);
    // And in chunks: half of what the tier's store takes at a time, whatever their size.
    uint32_t writes = 2048;
    // How much the disk holds, in slots: by this core tells what was used lately (DiskAges).
    Bytes capacity = GiB(16);
  };
  std::optional<Disk> disk = {};
  // A store beyond the node, which others may read and write, too; absent: there is none.
  struct Remote {
    // What is being written at a time, in bytes of slots. Larger: more of the pool is bound to a slow store.
    Bytes writing = MiB(64);
    // Chunks that wait to be written; those beyond aren't. Larger: bursts lose less, and what is written late may be evicted by then.
    uint32_t queue = 16384;
    // When it hasn't answered in time it isn't asked for so long. Longer: a slow store costs less, and is missed longer.
    absl::Duration pause = absl::Seconds(1);
    // So long a job that goes on after a restart waits for it to be reachable. Longer: others wait behind such a job while the store is away.
    absl::Duration awaited = absl::Seconds(30);
  };
  std::optional<Remote> remote = {};
  bool below() const { return disk.has_value() || remote.has_value(); }
  uint8_t tiers_below() const {  // TierBit of each
    return static_cast<uint8_t>((disk.has_value() ? TierBit(Tier::kSsd) : 0) |
                                (remote.has_value() ? TierBit(Tier::kRemote) : 0));
  }
  // What is below is left alone where the engine, by what it reports, computes it sooner than it would be read. Off: it is always read.
  bool gate = true;
  // Seeds the index's hash; random in a daemon, fixed in a simulation.
  uint64_t seed = 0;

  // What no event exceeds, in Core::work(): what it may do, what it names all the same (kKeysMax chunks, twice), the last step, one of
  // emptying a slab, and what a reserve takes back of a chain. For any event from an event_work of 2 * kKeysMax on; the default is twice that. Only tests set less (down to 16): there an event that
  // names more, such as a clear of 4,096 keys with a remote store, exceeds it.
  uint64_t EventWorkBound() const {
    return 2 * uint64_t{event_work} + 512 + Vacating::kWorkMax + (disk.has_value() ? CleanReserve::kAboveMax : 0);
  }

  absl::Status Validate() const;  // names the field
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_CORE_OPTIONS_H_
