#ifndef KVIST_DAEMON_RPC_NODE_CONTROL_H_
#define KVIST_DAEMON_RPC_NODE_CONTROL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/rpc/prompt.h"
#include "storage/base/latency_histogram.h"
#include "storage/base/units.h"

namespace kvist::rpc {

// What the admin API needs of a node; daemon/node.h implements it over the reactor. Plain data: no protobuf here, no core types.
struct Traffic {  // counts since the start
  uint64_t lookups = 0, chunks_asked = 0, chunks_hit = 0, chunks_loaded = 0, chunks_stored = 0, failed = 0;
  Bytes bytes_loaded{}, bytes_stored{};
};

// The tier on disk in short.
struct SsdTierStatus {
  std::string state;    // on, recovering, read-only or off
  std::string trouble;  // why it is off or read-only, or what else is wrong; "" for nothing
  bool recovering = false;
  uint64_t chunks = 0;  // that are nowhere else
  Bytes live{}, capacity{};
  struct Directory {
    std::string path;
    std::string how;  // it is driven; "" while there is no tier
  };
  std::vector<Directory> directories = {};  // of ssd.path; none when the configuration wants no tier
};

// The tier beyond the node. Counts are since the start.
struct RemoteStatus {
  std::string name;   // remote:NAME
  std::string store;  // its URL
  bool reachable = false;
  std::string why_not;  // it isn't
  bool encrypted = false;
  uint64_t lookups_asked = 0, lookups_unanswered = 0;
  uint64_t chunks_found = 0, chunks_read = 0, reads_failed = 0, chunks_missing = 0, chunks_corrupt = 0;
  uint64_t chunks_written = 0, writes_failed = 0, chunks_dropped = 0;
  uint64_t chunks_waiting = 0;  // to be written, now
  Bytes read{}, written{};
  Bytes on_their_way{};  // now
  uint64_t breaker_opened = 0;
  // What was found where an object was read, all kinds, the good one first
  std::vector<std::pair<std::string, uint64_t>> verdicts;
};

struct NodeStatus {
  struct Space {
    std::string digest;  // 64 hex digits
    std::string tenant;
    std::string model;
    uint64_t chunks = 0;
    Bytes bytes{};
    Traffic traffic{};
  };
  // One on which engines have registered since the start.
  struct Gpu {
    std::string name;
    Bytes imported{};  // of engines' memory that is mapped here
    std::string lost;  // why nothing works on it any more; "" while it does
  };
  struct Latency {
    std::string name;
    LatencyHistogram durations;
  };
  std::string engine_socket;
  std::string state_dir;  // "": none
  absl::Duration uptime;
  Bytes pool_capacity{}, pool_used{}, pool_private{}, pool_touched{}, pool_page{}, slab{};
  uint64_t pool_slots = 0;
  uint32_t pool_regions = 0;
  bool pool_locked = false;
  Bytes pool_pinned{};  // for GPUs
  std::vector<Gpu> gpus;
  std::vector<Space> spaces;
  uint64_t sessions = 0, instances = 0, leases = 0, pins = 0, allocations = 0, ops = 0, filling = 0;
  Bytes index{};
  SsdTierStatus ssd{};
  std::optional<RemoteStatus> remote = {};
  uint64_t lookups = 0, chunks_asked = 0, chunks_hit = 0, chunks_stored = 0, chunks_loaded = 0, chunks_refused = 0,
           evictions = 0;
  Traffic traffic{};
  std::vector<Latency> latencies;  // of hooks
  std::vector<Latency> waits;      // in queues
};

struct SsdStatus {
  struct Device {  // [its place in ssd.path]; counts since the start
    std::string directory;
    std::string how;
    bool writable = false;
    std::string why;  // it isn't
    uint64_t segments = 0, free = 0, fenced = 0, released = 0;
    Bytes capacity{}, live{}, written{}, read{};
    Bytes moved{};  // of `written`: what was there already
    uint64_t records_written = 0, records_read = 0, syncs = 0;
    uint64_t write_errors = 0, sync_errors = 0, read_errors = 0;
    std::vector<std::pair<std::string, uint64_t>> verdicts;  // all kinds, the good one first
    Bytes in_flight{};
    uint64_t waiting = 0;
  };
  struct Recovery {
    bool ended = false;
    std::string error, message;
    bool rebuilt = false;
    uint64_t chunks = 0, cleared = 0, skipped = 0;
    absl::Duration elapsed;
  };
  struct Scrub {
    uint64_t passes = 0, records = 0, damaged = 0, unreadable = 0;
    Bytes read{};
    absl::Duration last;
  };
  SsdTierStatus tier;
  std::vector<Device> devices;
  uint64_t commits = 0, commits_failed = 0;
  uint64_t catalogs_set_aside = 0;
  std::string catalog;  // what is wrong with it
  Recovery recovery;
  Scrub scrub;
  uint64_t chunks_written = 0, chunks_moved = 0, chunks_reclaimed = 0, chunks_read = 0, writes_failed = 0, reads_failed = 0,
           chunks_corrupt = 0;
  struct Encoded {
    uint64_t chunks = 0;
    Bytes bytes{}, slot_bytes{};
  };
  Encoded encoded;
};

struct SessionStatus {
  uint64_t id = 0;
  std::string instance;
  std::string role;
  uint32_t rank = 0;
  std::string tenant;
  uint32_t pid = 0;
  uint32_t uid = 0;
  std::string space;  // 64 hex digits
  std::string model;
  absl::Duration age;
  uint64_t ops = 0;
  uint64_t requests = 0;
  Traffic traffic{};
};

// A long operation.
struct JobStatus {
  uint64_t id = 0;
  std::string kind;
  std::string space;  // 64 hex digits; "" for everything
  std::string state;  // running, done or cancelled
  uint64_t done = 0, total = 0, chunks = 0;
  absl::Duration took = absl::ZeroDuration();  // since it began to work; not known of one that an earlier kvistd has ended
  std::string request = {};
  Bytes bytes{};                   // of those chunks, of a job on a prompt
  uint64_t already = 0, left = 0;  // chunks of a move that were there already, or stayed where they were
  Bytes bytes_after{};             // of one that encodes
  double relative_error = 0, attention_error = 0;
  std::string trouble = {};
  std::string tier = {};  // of a clear of one tier: which
  bool resumed = false;   // it was asked for of an earlier kvistd, which ended before it

  bool running() const { return state == "running"; }
  bool operator==(const JobStatus&) const = default;
};

// A tenant's part of the pool.
struct QuotaStatus {
  std::string tenant;
  Bytes bytes{};       // 0 for none
  std::string origin;  // configuration or runtime; "" for none
  Bytes used{};
  uint64_t evictions = 0;
  std::string note;  // what is odd about it
};

// A prompt that an engine wants kept.
struct PinStatus {
  uint64_t id = 0;  // names it while this daemon lives
  std::string owner;
  std::string tenant;
  std::string space;  // 64 hex digits
  std::string model;
  uint32_t chunks = 0, asked = 0;
  Bytes bytes{};
  uint64_t count = 0;
  absl::Duration age{};
  absl::Duration lasts = absl::InfiniteDuration();  // until it ends by itself
};

// What of a prompt is there in a space.
struct Found {
  std::string digest;  // 64 hex digits
  std::string tenant;
  std::string model;
  uint32_t chunk_tokens = 0;
  uint32_t asked = 0;            // full chunks
  uint32_t chunks = 0;           // of these, from the first on
  uint32_t on_disk = 0;          // of these: something has to be read first
  uint32_t remote = 0;           // and behind them: in the remote store only
  std::string remote_tier = {};  // its name, remote:NAME; empty: there is none
};

struct PinWish {
  std::string owner;
  absl::Duration lasts = absl::InfiniteDuration();
};

struct Pinned {
  std::vector<PinStatus> pins;  // one for each space in which something is there
  uint64_t spaces = 0;          // that fit
};

enum class Tier { kDram, kSsd, kRemote };

struct MoveWish {
  std::string remote;  // the name of the remote tier, where it is one of the two: remote:NAME
  Tier from = Tier::kSsd;
  Tier to = Tier::kDram;  // another one
  bool keep_source = false;
  bool prefetch = false;  // that is what it is called then
};

// How what a tier has of a prompt is to lie there.
struct RecodeWish {
  std::string tier;    // ssd or remote:NAME
  std::string method;  // of storage/codec; "" for as it is in DRAM
};

// What is to be cleared, of a prompt or without one.
struct ClearWish {
  std::string space = {};  // without a prompt: its digest, 64 hex digits; "" for everything
  std::string tier = {};   // dram, ssd or remote:NAME; "" for all
};

// One for each space in which the prompt has a full chunk.
struct PromptJobs {
  std::vector<JobStatus> jobs;
  uint64_t spaces = 0;  // that fit
};

// A part of a list that may be long: so much costs the reactor about 100 us (tests/e2e/pins_test.cc prints it), and is far below
// gRPC's 4 MiB a message, for names of engines and models end at 255 bytes.
inline constexpr size_t kPageRows = 256;
template <class Row>
struct Page {
  std::vector<Row> rows;  // by their numbers, the lowest first
  uint64_t next = 0;      // ask for the rest after this number; 0: there is none
};

// Keys of the configuration (section.key) that a reload found different.
struct ReloadResult {
  std::vector<std::string> in_force;       // from now on
  std::vector<std::string> needs_restart;  // are still as they were
};

// Threads: any; each call waits for the reactor, at most until `deadline` (monotonic clock).
// Errors: DeadlineExceeded  the node didn't answer in time (what it was asked to do goes on).  Unavailable  it is stopping.
class NodeControl {
 public:
  virtual ~NodeControl() = default;
  virtual absl::StatusOr<NodeStatus> Status(absl::Time deadline) = 0;
  virtual absl::StatusOr<SsdStatus> Ssd(absl::Time deadline) = 0;
  // The sessions whose number is above `after`, kPageRows at most.
  virtual absl::StatusOr<Page<SessionStatus>> Sessions(uint64_t after, absl::Time deadline) = 0;
  // Starts to clear a space, or everything; or finds the job that was started for this request, when it has a name.
  // Errors also: NotFound  no such space.  ResourceExhausted  as many jobs run as may.  InvalidArgument, FailedPrecondition  the tier.
  virtual absl::StatusOr<JobStatus> Clear(const ClearWish& wish, const std::string& request, absl::Time deadline) = 0;
  // Reads the configuration again and puts it in force: all of it, or nothing.
  // Errors also: InvalidArgument and those of reading files: every error with its place, a line each; everything is as it was.
  // So it is, too, with  Aborted  the node is busy: ask again.
  virtual absl::StatusOr<ReloadResult> Reload(absl::Time deadline) = 0;
  // The jobs that run and those that ended last. Errors of the two below also: NotFound  no such job is listed.
  virtual absl::StatusOr<std::vector<JobStatus>> Jobs(absl::Time deadline) = 0;
  virtual absl::StatusOr<JobStatus> Job(uint64_t id, absl::Time deadline) = 0;
  // Stops it where it is, if it runs; how it ended.
  virtual absl::StatusOr<JobStatus> CancelJob(uint64_t id, absl::Time deadline) = 0;
  // Tenants that have come or have a quota.
  virtual absl::StatusOr<std::vector<QuotaStatus>> Quotas(absl::Time deadline) = 0;
  // Sets a quota until the next reload, or ends it (0).
  // Errors also: InvalidArgument  no engine can be of that tenant, or a quota can't be so small or large.
  virtual absl::StatusOr<QuotaStatus> SetQuota(const std::string& tenant, Bytes bytes, absl::Time deadline) = 0;
  // What of a prompt is there in each space that fits; uses and moves nothing.
  // Errors of the two below also: NotFound  no space fits.  InvalidArgument  too many do.
  virtual absl::StatusOr<std::vector<Found>> Lookup(const SpaceFilter& filter, const Prompt& prompt,
                                                    absl::Time deadline) = 0;
  // Pins it in each. Errors also: ResourceExhausted  a tenant's pins keep too much: from that space on nothing was pinned.
  virtual absl::StatusOr<Pinned> Pin(const SpaceFilter& filter, const Prompt& prompt, const PinWish& wish,
                                     absl::Time deadline) = 0;
  // Starts to clear a prompt in each, or to move it; or finds the job of that space that was started for this request, when it has a name.
  // Errors also: InvalidArgument  the prompt is too long. ResourceExhausted  as many jobs run as may: from that space on none was started.
  // FailedPrecondition  there is no such tier.
  virtual absl::StatusOr<PromptJobs> ClearPrompt(const SpaceFilter& filter, const Prompt& prompt, const ClearWish& wish,
                                                 const std::string& request, absl::Time deadline) = 0;
  virtual absl::StatusOr<PromptJobs> Move(const SpaceFilter& filter, const Prompt& prompt, const MoveWish& wish,
                                          const std::string& request, absl::Time deadline) = 0;
  // Encodes it there. Errors also: FailedPrecondition  there is no such tier.  InvalidArgument  the method.
  virtual absl::StatusOr<PromptJobs> Recode(const SpaceFilter& filter, const Prompt& prompt, const RecodeWish& wish,
                                            const std::string& request, absl::Time deadline) = 0;
  // The pins whose number is above `after`, kPageRows at most, perhaps none although more follow.
  virtual absl::StatusOr<Page<PinStatus>> Pins(uint64_t after, absl::Time deadline) = 0;
  // Ends a pin; what it was. Errors also: NotFound  no such pin.
  virtual absl::StatusOr<PinStatus> RemovePin(uint64_t id, absl::Time deadline) = 0;
};

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_NODE_CONTROL_H_
