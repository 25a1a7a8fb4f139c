#ifndef KVIST_KVIST_H_
#define KVIST_KVIST_H_

/* kvist's C ABI: what an inference engine links to keep its KV cache in kvistd.
 *
 * An engine calls four hooks: lookup, load, store, wait. Pins, hints and private allocations are for those that want more. The daemon
 * moves the bytes itself, between the engine's paged KV memory and its own tiers; the engine passes page numbers, never bytes.
 *
 *   scheduler process           kvist_connect(KVIST_SCHEDULER)  kvist_lookup ... kvist_release
 *   each worker (TP x PP rank)  kvist_connect(KVIST_WORKER)     kvist_load, kvist_store, kvist_wait, kvist_poll
 *
 * Promises: every call ends within its deadline; a call never blocks on I/O, but for a lookup where the operator has given kvistd a store
 * beyond the node to ask (remote.lookup_wait at most); when the daemon is away every lookup is a miss and
 * every operation ends with KVIST_UNAVAILABLE, and the client connects and registers again by itself. A miss is always an
 * allowed answer, wrong bytes never are.
 *
 * Threads: a kvist_client may be used from any number of threads. A kvist_chain is used by one thread at a time.
 * Structs: those that start with struct_size = sizeof(struct) grow at their ends in later versions; what is zero means the default. So a caller of an
 * earlier version is served as before, one of a later version as long as it leaves zero what this library doesn't know, else it is told so
 * (INVALID_ARGUMENT). An array of them has steps of struct_size bytes. The others stay as they are.
 * Errors: every function returns a kvist_status; kvist_error() has the message of the last failure on this thread. */

#include <stddef.h>
#include <stdint.h>

#define KVIST_ABI_VERSION 1
#define KVIST_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvist_status {
  KVIST_OK = 0,
  KVIST_PENDING = 1,             /* not an error: the operation is still under way */
  KVIST_INVALID_ARGUMENT = 2,    /* fix the caller: the message names what was wrong */
  KVIST_FAILED_PRECONDITION = 3, /* fix the set-up: wrong role, version, memory, or configuration */
  KVIST_RESOURCE_EXHAUSTED = 4,  /* no room now (ring, budget, pool): go on without */
  KVIST_UNAVAILABLE = 5,         /* the daemon is away: go on without; the client reconnects by itself */
  KVIST_DEADLINE_EXCEEDED = 6,   /* not done in time: go on without */
  KVIST_ABORTED = 7,             /* the lease or session it relied on has ended: look up again */
  KVIST_CANCELLED = 8,           /* ended by kvist_cancel */
  KVIST_PERMISSION_DENIED = 9,   /* the daemon doesn't serve this user */
  KVIST_DATA_LOSS = 10,          /* the bytes are not what they should be: treated as a miss, never delivered */
  KVIST_INTERNAL = 11            /* a bug: please report the message */
} kvist_status;

/* Name of a status, e.g. "UNAVAILABLE". Never NULL. */
KVIST_API const char* kvist_status_name(kvist_status status);
/* The message of this thread's last failed call: what was wanted, what was found, what to do. Never NULL; valid until the next call. */
KVIST_API const char* kvist_error(void);
/* KVIST_ABI_VERSION of the library that is loaded. */
KVIST_API uint32_t kvist_abi_version(void);

/* ---- Chunk keys ------------------------------------------------------------------------------------------------------------
 * A chunk is a run of chunk_tokens tokens, named by its whole prefix. The chain of one request is extended as tokens come. */

typedef struct kvist_key {
  uint8_t bytes[32];
} kvist_key;
typedef struct kvist_chain kvist_chain;

typedef struct kvist_chain_options {
  size_t struct_size;
  uint32_t chunk_tokens; /* as in kvist_space; required */
  const char* salt;      /* requests with different salts never share; NULL is the empty salt */
  const char* lora;      /* name and revision of the adapter; NULL is none */
} kvist_chain_options;

KVIST_API kvist_status kvist_chain_create(const kvist_chain_options* options, kvist_chain** chain);
KVIST_API void kvist_chain_destroy(kvist_chain* chain);
/* Adds tokens; those past the last full chunk wait for the rest of theirs. */
KVIST_API kvist_status kvist_chain_append(kvist_chain* chain, const uint32_t* tokens, size_t count);
/* Binds what is not a token (an image's hash) to the chunk that is filling; call before the append that completes it. */
KVIST_API kvist_status kvist_chain_bind(kvist_chain* chain, const void* extra, size_t size);
/* The keys of the full chunks so far; valid until the next append. */
KVIST_API const kvist_key* kvist_chain_keys(const kvist_chain* chain, size_t* count);

/* ---- Connecting ----------------------------------------------------------------------------------------------------------- */

typedef struct kvist_client kvist_client;

typedef enum kvist_role { KVIST_SCHEDULER = 0, KVIST_WORKER = 1 } kvist_role;

/* In which order a chunk's bytes lie in a slot. Layer-major lets loads go layer by layer. (Page-major is for engines whose pages
 * hold all layers; not served yet.) */
typedef enum kvist_slot_order { KVIST_LAYER_MAJOR = 0 } kvist_slot_order;

/* What an engine needs of a prefix in the layers of one cache group, to go on after it. */
typedef enum kvist_group_kind {
  KVIST_FULL = 0,   /* all of it */
  KVIST_WINDOW = 1, /* the last tokens: sliding-window attention */
  KVIST_STATE = 2   /* the recurrent state after its last token, one page a layer */
} kvist_group_kind;

/* Layers that share a block table and a reuse rule. */
typedef struct kvist_group {
  size_t struct_size;
  kvist_group_kind kind;
  uint32_t layers;        /* on one rank */
  uint32_t window_tokens; /* KVIST_WINDOW: a token looks at itself and the window_tokens - 1 before it */
  uint32_t page_tokens;   /* 0: kvist_space.page_tokens. Not for KVIST_STATE */
  uint64_t segment_bytes; /* as in kvist_space */
  uint32_t segments;
  /* 1: all tensor-parallel ranks hold the same bytes (MLA); they are stored once. Each rank stores; the first wins. */
  int32_t replicated;
} kvist_group;

#define KVIST_GROUPS_MAX 64

/* All that must match for KV bytes to be reusable. Strings are at most 255 bytes. The daemon adds the tenant (from the peer's
 * uid) and computes the space's digest; engines share bytes only if their digests are equal. */
typedef struct kvist_space {
  size_t struct_size;
  const char* model;          /* name of the model; required */
  const char* revision;       /* of the weights; NULL is "" */
  const char* kv_dtype;       /* e.g. "bf16"; required */
  const char* layout;         /* what the bytes of a page mean beyond their sizes: engine, backend, version; NULL is "" */
  uint32_t layers;            /* attention layers on one rank */
  uint32_t page_tokens;       /* tokens of a page (vLLM: block size) */
  uint32_t chunk_tokens;      /* tokens of a chunk, a multiple of page_tokens; kvist_default_chunk_tokens() when in doubt */
  uint64_t segment_bytes;     /* bytes of one contiguous piece of a page in one layer on one rank */
  uint32_t segments;          /* such pieces of a page in one layer, e.g. 2 for K and V */
  uint32_t tensor_parallel;   /* 0 is 1 */
  uint32_t pipeline_parallel; /* 0 is 1; all ranks hold the same number of layers */
  kvist_slot_order slot_order;
  /* Hybrid models: the cache groups, at most KVIST_GROUPS_MAX, all of one struct_size; layers, segment_bytes and segments above are 0 then. NULL: one full group. */
  const kvist_group* groups;
  size_t group_count;
} kvist_space;

/* One step of the walk over a page's segments: `count` times, `stride` bytes apart. The product of the counts is kvist_space.segments;
 * the last dimension varies fastest. */
typedef struct kvist_dim {
  uint32_t count;
  uint64_t stride;
} kvist_dim;

/* Where block 0 of a layer starts. */
typedef struct kvist_layer {
  uint32_t region;
  uint64_t offset;
} kvist_layer;

/* The pages of one cache group, where groups differ. Groups may share memory, in pages of their own (a pool of blocks). */
typedef struct kvist_group_pages {
  uint32_t pages;
  uint64_t page_stride;
  const kvist_dim* dims;
  size_t dim_count;
} kvist_group_pages;

/* Memory of this process that is in no memfd: [address, address + length). */
typedef struct kvist_process_region {
  void* address;
  uint64_t length;
} kvist_process_region;

/* GPU memory of this process: [address, address + length), within one allocation of cudaMalloc or the like. */
typedef struct kvist_cuda_region {
  void* address;
  uint64_t length;
} kvist_cuda_region;

/* Writes `size` bytes as the content of page `page` of layer `layer` (of kvist_memory.layers), through the engine's own tensor indexing:
 * computed from this description it would prove nothing. `bytes` holds the page's segments in order. GPU memory is written when this
 * returns (synchronise the stream). Returns 0. */
typedef int (*kvist_write_page)(void* context, uint32_t layer, uint32_t page, const void* bytes, size_t size);

/* A worker's paged KV memory, described, not recognised: byte b of segment s of page p of layer l lies at
 *   layers[l].offset + p * page_stride + (walk of `dims` to s) + b        in region layers[l].region. */
typedef struct kvist_memory {
  size_t struct_size;
  /* Regions 0 and up, with a layer in each. Sealed with F_SEAL_SHRINK they are mapped, else copied with preadv and pwritev. The client
   * duplicates them. Touch all of them before: a page that kvistd is the first to touch counts as its own in its memory limits. */
  const int* memfds;
  size_t memfd_count;
  const kvist_layer* layers; /* kvist_space.layers of them, or those of its groups, group by group */
  size_t layer_count;
  uint32_t pages;        /* page ids are below this */
  uint64_t page_stride;  /* bytes from page p to page p + 1 */
  const kvist_dim* dims; /* at most 4; NULL when a page is one segment */
  size_t dim_count;
  /* Called during kvist_connect for the first and the last page of every layer, whose content it replaces; never later. */
  kvist_write_page write_page;
  void* context;
  /* One for each group of the space; NULL: pages, page_stride and dims above hold for all. */
  const kvist_group_pages* groups;
  size_t group_count;
  /* Regions memfd_count and up, for memory that can't be a memfd; they must stay mapped until kvist_disconnect. kvistd copies them with
   * process_vm_readv and process_vm_writev, slower than a mapped memfd, and only for processes of its own uid: any other is refused with
   * PERMISSION_DENIED. Where yama restricts these calls the client allows kvistd (PR_SET_PTRACER, of which a process has one). */
  const kvist_process_region* process_regions;
  size_t process_region_count;
  /* Regions of GPU memory, all on one GPU, and then no others; they must stay allocated until kvist_disconnect. kvistd opens them through
   * CUDA IPC: memory of expandable segments or of a sleep mode can't be, and is refused with that reason. */
  const kvist_cuda_region* cuda_regions;
  size_t cuda_region_count;
} kvist_memory;

typedef struct kvist_options {
  size_t struct_size;
  const char* socket;   /* NULL: $KVIST_SOCKET, else that of this user's own kvistd, else /run/kvist/engine.sock */
  const char* instance; /* names the engine: its scheduler and workers give the same name; at most 255 bytes; required */
  kvist_role role;
  uint32_t rank;              /* a worker's, below tensor_parallel * pipeline_parallel */
  const kvist_space* space;   /* required; read during kvist_connect only, as memory */
  const kvist_memory* memory; /* workers only */
  int64_t deadline_us;        /* of calls that give none; 0 is 1,000,000 */
  /* How long kvist_connect waits for a daemon; 0 is 1,000,000. It succeeds without one, too. With GPU memory one that has answered is waited
   * for longer, at most 20 s: it opens that memory. */
  int64_t connect_timeout_us;
  /* 1: a daemon that refuses (another version, another user's) is like one that is away: kvist_connect succeeds once the description of the
   * memory has proved right, kvist_connection_state says REFUSED, kvist_wait_connected why, and the client asks again every second. */
  int32_t ask_again;
  /* 1: loads of what this client looks up are waited for layer by layer (kvist_wait for fewer than all). What is on disk of them is then read
   * so, too: the first layer of all chunks comes long before the last one of any, and all of it a little later than otherwise. */
  int32_t by_layer;
} kvist_options;

/* Opens a session. Succeeds also when the daemon is away (the client then keeps trying; until it is there everything is a miss).
 * Errors: INVALID_ARGUMENT, FAILED_PRECONDITION (version, wrong probe page, an instance with another space), PERMISSION_DENIED
 * (of the socket, or of process_regions), RESOURCE_EXHAUSTED (no descriptors or no thread for the client's own). */
KVIST_API kvist_status kvist_connect(const kvist_options* options, kvist_client** client);
/* Ends the session: cancels what is in flight, waits (bounded by the default deadline) until no copy touches the pages, frees; the client is gone
 * whatever is returned. Errors: DEADLINE_EXCEEDED  kvistd stands still in the middle of a load and may go on with it: memory that it reaches through
 * process_regions or cuda_regions must stay as it is while that kvistd lives. */
KVIST_API kvist_status kvist_disconnect(kvist_client* client);

typedef enum kvist_connection { KVIST_CONNECTED = 0, KVIST_RECONNECTING = 1, KVIST_REFUSED = 2 } kvist_connection;
/* Whether a daemon serves this client now; `space_digest` (may be NULL) gets the 32 bytes of the last Welcome. */
KVIST_API kvist_connection kvist_connection_state(const kvist_client* client, uint8_t space_digest[32]);
/* Blocks until the client is connected or refused, at most timeout_us; 0 only asks. */
KVIST_API kvist_status kvist_wait_connected(kvist_client* client, int64_t timeout_us);

/* ---- The hooks ------------------------------------------------------------------------------------------------------------ */

typedef uint64_t kvist_lease; /* 0 is none */
typedef uint64_t kvist_op;    /* 0 is none */

typedef struct kvist_hit {
  uint32_t chunks; /* how far the prompt can be resumed, in chunks: what every group needs for that is there */
  uint32_t coming; /* how many of those chunks, of all groups, are on their way from a slower tier; a load waits for them */
  /* Keeps them there until kvist_release; 0 when there are none past `have` or the instance's lease budget is spent */
  kvist_lease lease;
} kvist_hit;

/* How far `keys` (the whole chain, from the first chunk) can be resumed in all cache groups at once; with one full group that is the
 * longest prefix that the daemon holds. With `lease_us` > 0 the hit is leased for so long (the daemon caps it); 0 only asks. The first
 * `have` chunks are the engine's own already: they aren't leased, nor fetched from a slower tier, and a load begins behind them; so a hit that
 * is longer than the lease budget can be loaded in parts, too. Only the first 4,096 keys are looked at, 262,144 tokens in chunks of 64:
 * for longer prompts choose larger chunks. `hit` is always set: on any error it says 0 chunks, which is a miss. */
KVIST_API kvist_status kvist_lookup(kvist_client* client, const kvist_key* keys, size_t count, uint32_t have,
                                    int64_t lease_us, int64_t deadline_us, kvist_hit* hit);

/* The two halves of kvist_lookup, for schedulers that never wait: the first asks, the second hears the answer, at most timeout_us later
 * (0: what is known now). PENDING: ask again; `hit` says 0 chunks meanwhile. Any other answer ends the op; past the deadline that is
 * DEADLINE_EXCEEDED, a miss. kvist_cancel gives the question up, and the lease with it. */
KVIST_API kvist_status kvist_lookup_start(kvist_client* client, const kvist_key* keys, size_t count, uint32_t have,
                                          int64_t lease_us, int64_t deadline_us, kvist_op* op);
KVIST_API kvist_status kvist_lookup_result(kvist_client* client, kvist_op op, int64_t timeout_us, kvist_hit* hit);

/* Where a chunk can be: bits. In several at once, with copies there; in none: no lookup finds it. On SSD: durable, it survives kill -9 and a power cut. */
typedef enum kvist_tier { KVIST_IN_DRAM = 1, KVIST_ON_SSD = 2, KVIST_IN_REMOTE = 4 } kvist_tier;
#define KVIST_WHERE_KEYS_MAX 192

/* Where each of these chunks of a cache group is now, each by itself; for who keeps others informed (KV events). Costs less than a lookup; nobody
 * has used them for it, and nothing keeps them there. A store beyond the node isn't asked: KVIST_IN_REMOTE says what kvistd knows of. As a lookup
 * in two halves: the first asks, never waits and wakes nobody, so kvistd hears it with the session's next request, within some 20 ms, or as soon
 * as somebody waits for the answer; the second hears that, at most timeout_us later (0: what is known now). PENDING: ask again. Any other answer
 * ends the op; kvist_cancel gives it up. tiers[i] gets the bits of keys[i] when the answer is OK, else 0; `count` is that of the keys.
 * Errors: INVALID_ARGUMENT  no keys or too many of them, no such group; or kvistd is older than this call. */
KVIST_API kvist_status kvist_where_start(kvist_client* client, const kvist_key* keys, size_t count, uint32_t group,
                                         int64_t deadline_us, kvist_op* op);
KVIST_API kvist_status kvist_where_result(kvist_client* client, kvist_op op, int64_t timeout_us, uint8_t* tiers,
                                          size_t count);

/* Which chunks of a hit a group needs, and a load of it may name: [this, chunks). 0 for full groups. */
KVIST_API uint32_t kvist_first_needed(const kvist_client* client, uint32_t group, uint32_t chunks);

/* Ends a lease, within a second; loads under way keep what they need. Any session of the instance may. Unknown and ended leases are
 * ignored. */
KVIST_API kvist_status kvist_release(kvist_client* client, kvist_lease lease);

/* GPU memory: what a copy waits for before it touches the pages. It never makes anything else wait, on the GPU or in kvistd. */
typedef enum kvist_after {
  /* The pages are ready: written, if they are to be stored; not read any more, if they are to be loaded into */
  KVIST_AFTER_NOTHING = 0,
  KVIST_AFTER_STREAM = 1, /* what `stream` (a CUstream or cudaStream_t of the GPU's primary context) has been given by now */
  KVIST_AFTER_LAYERS = 2  /* for each layer what kvist_pages_ready says, so that a store follows a forward pass */
} kvist_after;

typedef struct kvist_load_args {
  size_t struct_size;
  kvist_lease lease;    /* of this instance; the lookup that gave it may have been made by another of its sessions */
  uint32_t first_chunk; /* of the leased prefix, at least kvist_first_needed */
  uint32_t chunk_count;
  /* chunk_count * (chunk_tokens / page_tokens) page ids, in order of tokens (KVIST_STATE: one a chunk); KVIST_NO_PAGE for those that
   * are not to be written, e.g. what the engine has itself. */
  const uint32_t* pages;
  size_t page_count;
  uint32_t first_layer; /* layers [first_layer, first_layer + layer_count) of the group */
  uint32_t layer_count; /* 0: all from first_layer on */
  int64_t deadline_us;  /* from now; 0 is the default */
  uint32_t group;       /* of kvist_space.groups */
  int32_t after;        /* a kvist_after */
  void* stream;         /* KVIST_AFTER_STREAM */
} kvist_load_args;

#define KVIST_NO_PAGE UINT32_MAX

/* What begins an operation (lookup_start, load, store, swap) doesn't wait for anything: RESOURCE_EXHAUSTED says that kvistd is behind. */

/* Starts copying chunks into pages, first layer first. Until the op has ended with pages_released the pages belong to the daemon. */
KVIST_API kvist_status kvist_load(kvist_client* client, const kvist_load_args* args, kvist_op* op);

typedef struct kvist_store_args {
  size_t struct_size;
  /* The chain from the first chunk of the request; the end of it will do, from the chunk before the first that is stored. */
  const kvist_key* keys;
  size_t key_count;
  uint32_t first_chunk; /* chunks [first_chunk, key_count) are stored; above 0 when there is one before them */
  /* (key_count - first_chunk) * (chunk_tokens / page_tokens) page ids (KVIST_STATE: one a chunk). A chunk is stored whole, so
   * KVIST_NO_PAGE is refused. */
  const uint32_t* pages;
  size_t page_count;
  int64_t deadline_us;
  uint32_t group; /* of kvist_space.groups. In window and state groups those before the stored ones need not be there */
  int32_t after;  /* as for kvist_load */
  void* stream;
} kvist_store_args;

/* Starts copying pages into new slots. Chunks that are there already are skipped. A chunk becomes visible when all ranks have stored it.
 * The pages must stay as they are until the op has ended, or kvist_cancel has returned. */
KVIST_API kvist_status kvist_store(kvist_client* client, const kvist_store_args* args, kvist_op* op);

typedef struct kvist_result {
  size_t struct_size;
  kvist_status status;     /* KVIST_PENDING while under way */
  uint32_t layers;         /* load: the first `layers` of the asked layers are in the pages */
  uint32_t chunks_copied;  /* once it has ended */
  uint32_t chunks_skipped; /* store: there already, or another instance is storing it */
  /* Store: no room, the parent has been evicted, or cleared or given up by another rank meanwhile */
  uint32_t chunks_refused;
  /* 1: nothing touches the pages any more. A load that ended by DEADLINE_EXCEEDED or UNAVAILABLE may have it 0: poll again until it is 1
   * before the pages are reused. */
  int32_t pages_released;
} kvist_result;

#define KVIST_ALL_LAYERS UINT32_MAX

/* Waits until the first `layers` asked layers are there (load), or the op has ended; at most timeout_us. `result` is always set, also
 * when the answer is KVIST_DEADLINE_EXCEEDED because the timeout came first. An op is forgotten once a result with status other than
 * PENDING and pages_released = 1 was given out; every op has to be asked for until then. */
KVIST_API kvist_status kvist_wait(kvist_client* client, kvist_op op, uint32_t layers, int64_t timeout_us,
                                  kvist_result* result);
/* kvist_wait without waiting: a read of shared memory. */
KVIST_API kvist_status kvist_poll(kvist_client* client, kvist_op op, kvist_result* result);
/* Gives an op up. A store's pages are free when this returns (what was not yet complete will never be seen). A load is over when a
 * later poll says pages_released. Either way the op is still asked for until its end. */
KVIST_API kvist_status kvist_cancel(kvist_client* client, kvist_op op);

/* GPU memory: has `stream` wait until the first `layers` asked layers are there, or the op has ended; so the order of calls doesn't matter, and
 * no thread waits. The stream goes on, too, when the op fails, is cancelled or late, or kvistd is gone (within 100 ms of the deadline): ask
 * kvist_poll before what was computed from the pages is used. Errors: INVALID_ARGUMENT  no such op. FAILED_PRECONDITION  the client's memory
 * isn't a GPU's, or its streams can't reach kvistd's board; says why. */
KVIST_API kvist_status kvist_wait_on_stream(kvist_client* client, kvist_op op, uint32_t layers, void* stream);
/* GPU memory: the pages of the first `layers` layers of a KVIST_AFTER_LAYERS copy are ready once `stream` has done what it was given by now. To
 * be said for growing numbers, of one stream at a time. Errors: as kvist_wait_on_stream. */
KVIST_API kvist_status kvist_pages_ready(kvist_client* client, kvist_op op, uint32_t layers, void* stream);
/* GPU memory: the engine itself needs the bus to its GPU for the next for_us microseconds (an all-reduce over PCIe); 0: it doesn't any more.
 * kvistd leaves it the bus: stores to and from this GPU, by whichever engine, wait, 100 ms in a row at most, and have the bus as long then; loads never
 * wait. Costs a write to shared memory; a hint, so without kvistd it does nothing. Errors: INVALID_ARGUMENT  for_us is negative or above a second. */
KVIST_API kvist_status kvist_bus_busy(kvist_client* client, int64_t for_us);

/* Waits until everything that is stored of the client's space (by whichever engine) is on disk and survives kill -9 and a power cut, or the
 * deadline: choose seconds, not a lookup's. *chunks (may be NULL) gets how many chunks that are. One at a time of a client.
 * Errors: FAILED_PRECONDITION  kvistd has no SSD tier. UNAVAILABLE  some could not be written. DEADLINE_EXCEEDED  it goes on all
 * the same; RESOURCE_EXHAUSTED  the last one still does. */
KVIST_API kvist_status kvist_flush(kvist_client* client, int64_t deadline_us, uint32_t* chunks);

/* ---- Wishes ----------------------------------------------------------------------------------------------------------------
 * Pins keep a prompt's KV until it is unpinned, whatever else wants the room; hints say what goes first. Neither makes anything wrong. */

/* Pins how far `keys` (the whole chain, at most 4,096) can be resumed now, as a lookup would find it; *chunks (may be NULL) gets how far
 * that is. The instance's name owns the pin, so it outlives the session, and with an SSD tier the daemon, on what of it is found again:
 * what was asked some moments before it was killed may not be. It ends with its last kvist_unpin, a clear, `kvistctl pins remove`, or, where there
 * is no SSD tier, with the daemon. While a daemon that was started again finds what is on its disk, a pin or unpin takes the place of what it knew.
 * Pinning again counts, and pins what is there then. Errors: RESOURCE_EXHAUSTED  the tenant's pins keep their share already;
 * DEADLINE_EXCEEDED  it may be pinned all the same. */
KVIST_API kvist_status kvist_pin(kvist_client* client, const kvist_key* keys, size_t count, int64_t deadline_us,
                                 uint32_t* chunks);
/* Takes one kvist_pin of the same keys back, by any session of the instance. Unknown pins are ignored. */
KVIST_API kvist_status kvist_unpin(kvist_client* client, const kvist_key* keys, size_t count, int64_t deadline_us);

typedef enum kvist_expected_reuse {
  KVIST_REUSE_UNKNOWN = 0,
  KVIST_REUSE_SOON = 1,
  KVIST_REUSE_LATER = 2,
  KVIST_REUSE_NEVER = 3
} kvist_expected_reuse;
typedef enum kvist_stop_reason {
  KVIST_STOP_UNKNOWN = 0,
  KVIST_STOP_STOP = 1, /* the model said so */
  KVIST_STOP_LENGTH = 2,
  KVIST_STOP_ABORTED = 3,
  KVIST_STOP_TOOL_CALL = 4 /* an agent's: it returns with the tool's answer */
} kvist_stop_reason;

typedef struct kvist_hint_args {
  size_t struct_size;
  int32_t session_ended;  /* 1: no further turn of this conversation will come */
  int32_t expected_reuse; /* a kvist_expected_reuse */
  int32_t stop_reason;    /* a kvist_stop_reason */
  int32_t reserved;       /* 0 */
} kvist_hint_args;

/* What the engine knows of these chunks (not the whole chain: what other prompts share should not be called ended). Kept with them until
 * they are hit again. Chunks that are ended or never needed again are evicted before all others. Nothing waits for a hint: one that finds
 * kvistd away or its ring full is lost, and the answer is OK. */
KVIST_API kvist_status kvist_hint(kvist_client* client, const kvist_key* keys, size_t count, const kvist_hint_args* args);

/* Computing the KV of tokens [first_token, first_token + token_count) of one prompt took so long (at most an hour), and nothing else was computed
 * meanwhile. By these reports kvistd learns what computing costs engines of this space, which it takes to be alike; then what lies on disk
 * and would be read slower is no hit of a lookup with a lease (ssd.gate in its configuration). Without reports all is loaded. A cost model
 * that is known can be told by reports of its own making: four at least, at different positions. */
KVIST_API kvist_status kvist_report_prefill(kvist_client* client, uint32_t first_token, uint32_t token_count,
                                            int64_t took_us);

/* ---- Private allocations ---------------------------------------------------------------------------------------------------
 * Room in kvistd for KV without keys, never shared: that of running requests that leave the engine's memory for a while (preemption by
 * swapping, layer-wise offload). One allocation is of one cache group and of all ranks; each rank swaps its own part, by layers.
 * What comes back is what was taken out last, or the swap fails (of replicated groups: see kvist_swap_out). It ends with kvist_free, or
 * with the session that made it. */

typedef uint64_t kvist_allocation; /* 0 is none */

/* Errors: RESOURCE_EXHAUSTED  no room now, or the instance or its tenant has its share of the pool already. INVALID_ARGUMENT  more than
 * 4,096 chunks at once, or than 16,384 / (1 + shards): a shard for each rank, or in replicated groups for each pipeline stage. Then nothing was
 * allocated. */
KVIST_API kvist_status kvist_alloc(kvist_client* client, uint32_t group, uint32_t chunk_count, int64_t deadline_us,
                                   kvist_allocation* allocation);
/* Any session of the instance may; copies under way keep what they need. Unknown and ended allocations are ignored. */
KVIST_API kvist_status kvist_free(kvist_client* client, kvist_allocation allocation);

typedef struct kvist_swap_args {
  size_t struct_size;
  kvist_allocation allocation; /* of this instance */
  uint32_t group;              /* as given to kvist_alloc */
  uint32_t first_chunk;
  uint32_t chunk_count;
  /* As for kvist_load. KVIST_NO_PAGE: out: zeros are kept in its place; in: what is kept is not written anywhere. */
  const uint32_t* pages;
  size_t page_count;
  uint32_t first_layer;
  uint32_t layer_count; /* 0: all from first_layer on */
  int64_t deadline_us;
  int32_t after; /* as for kvist_load */
  void* stream;
} kvist_swap_args;

/* Starts copying pages out, or back in; waited for like stores and loads: after kvist_swap_out has ended (or was cancelled: then those
 * chunks and layers can't come back) the pages are the engine's again. Of ranks that hold the same bytes (kvist_group.replicated) the
 * first takes them out, for the others there is nothing to do (chunks_skipped); they may come back when it is through, which the engine
 * must see to.
 * Ended with FAILED_PRECONDITION: these chunks and layers were not taken out completely, or another copy of them is under way. ABORTED: the
 * allocation has ended. */
KVIST_API kvist_status kvist_swap_out(kvist_client* client, const kvist_swap_args* args, kvist_op* op);
KVIST_API kvist_status kvist_swap_in(kvist_client* client, const kvist_swap_args* args, kvist_op* op);

/* Chunk size of new spaces when the engine has no wish, in tokens: 256 (tests/bench/README.md). */
KVIST_API uint32_t kvist_default_chunk_tokens(void);

#ifdef __cplusplus
}
#endif

#endif /* KVIST_KVIST_H_ */
