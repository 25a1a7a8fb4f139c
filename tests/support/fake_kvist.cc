#include "tests/support/fake_kvist.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <vector>

using Key = std::array<uint8_t, 32>;
using Bytes = std::vector<std::byte>;

struct kvist_chain {
  uint32_t chunk_tokens;
  std::vector<uint32_t> tail;
  std::vector<kvist_key> keys;
};

struct kvist_client {
  kvist_space space{};
  uint32_t pages = 0;
  uint64_t page_stride = 0, dim_stride = 0;
  std::vector<kvist_layer> layers;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

namespace {

using fake_kvist::Lie;

struct Op {
  bool is_load;
  std::vector<Key> keys;
  std::vector<uint32_t> pages;
  std::vector<Bytes> at_start;  // store: of each page
  int polls = 0;
  bool cancelled = false;
  uint64_t allocation = 0;  // swaps: its room
};

struct World {
  fake_kvist::Behaviour behaviour;
  fake_kvist::Observed observed;
  std::map<Key, std::vector<Bytes>> chunks;  // pages of each
  Key first_chunk{};                         // ever stored
  std::map<kvist_op, Op> ops;
  std::map<kvist_lease, std::vector<Key>> leases;
  std::map<kvist_allocation, std::vector<Bytes>> allocations;  // pages of each; empty ones were not taken out
  uint64_t last_id = 0;
};
World world;

Key KeyOf(const kvist_key& key) {
  Key result;
  std::copy_n(key.bytes, result.size(), result.begin());
  return result;
}

std::byte* Segment(const kvist_client& c, uint32_t layer, uint32_t page, uint32_t segment) {
  return c.data + c.layers[layer].offset + page * c.page_stride + segment * c.dim_stride;
}

Bytes ReadLayer(const kvist_client& c, uint32_t layer, uint32_t page) {
  Bytes bytes;
  for (uint32_t s = 0; s < c.space.segments; ++s)
    bytes.insert(bytes.end(), Segment(c, layer, page, s), Segment(c, layer, page, s) + c.space.segment_bytes);
  return bytes;
}

Bytes ReadPage(const kvist_client& c, uint32_t page) {
  Bytes bytes;
  for (uint32_t layer = 0; layer < c.space.layers; ++layer) {
    const Bytes part = ReadLayer(c, layer, page);
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

void WritePage(const kvist_client& c, uint32_t page, const Bytes& bytes) {
  const std::byte* from = bytes.data();
  for (uint32_t layer = 0; layer < c.space.layers; ++layer) {
    for (uint32_t s = 0; s < c.space.segments; ++s, from += c.space.segment_bytes)
      std::memcpy(Segment(c, layer, page, s), from, c.space.segment_bytes);
  }
}

void Scribble(const kvist_client& c, const Op& op) {
  const Bytes nonsense(c.space.layers * c.space.segments * c.space.segment_bytes, std::byte{0x3f});
  for (const uint32_t page : op.pages) {
    if (page != KVIST_NO_PAGE) WritePage(c, page, nonsense);
  }
}

void EndStore(const kvist_client& c, const Op& op, kvist_result* result) {
  const size_t per_chunk = op.pages.size() / op.keys.size();
  bool changed = false;
  for (size_t i = 0; i < op.keys.size(); ++i) {
    std::vector<Bytes> pages;
    for (size_t j = i * per_chunk; j < (i + 1) * per_chunk; ++j) {
      pages.push_back(ReadPage(c, op.pages[j]));
      changed = changed || pages.back() != op.at_start[j];
    }
    if (world.chunks.contains(op.keys[i])) {
      ++result->chunks_skipped;
    } else if (world.chunks.size() >= world.behaviour.chunks_max) {
      ++result->chunks_refused;
    } else {
      if (world.chunks.empty()) world.first_chunk = op.keys[i];
      world.chunks.emplace(op.keys[i], std::move(pages));
      ++result->chunks_copied;
    }
  }
  world.observed.changed_under_store += changed ? 1 : 0;
}

void EndLoad(const kvist_client& c, const Op& op, kvist_result* result) {
  result->status = world.behaviour.load_result;
  if (result->status != KVIST_OK) {
    Scribble(c, op);
    result->pages_released = op.polls >= world.behaviour.polls_until_end + world.behaviour.polls_until_release ? 1 : 0;
    return;
  }
  const Lie lie = world.behaviour.lie;
  std::byte* const first = Segment(c, 0, op.pages.front(), 0);
  const Bytes before(first, first + c.space.segment_bytes);
  auto page = op.pages.begin();
  for (const Key& key : op.keys) {
    if (lie == Lie::kNotOneByte) break;
    for (const Bytes& bytes : world.chunks.at(lie == Lie::kOtherChunk ? world.first_chunk : key))
      WritePage(c, *page++, bytes);
  }
  if (lie == Lie::kMissingPiece) std::copy(before.begin(), before.end(), first);
  if (lie == Lie::kFlippedByte) first[c.space.segment_bytes - 1] ^= std::byte{4};
  result->layers = c.space.layers;
  result->chunks_copied = static_cast<uint32_t>(op.keys.size());
}

void EndSwap(const kvist_client& c, const Op& op, kvist_result* result) {
  const auto room = world.allocations.find(op.allocation);
  if (room == world.allocations.end()) {
    result->status = KVIST_ABORTED;
    return;
  }
  if (op.is_load && world.behaviour.load_result != KVIST_OK) return EndLoad(c, op, result);
  room->second.resize(op.pages.size());
  for (size_t i = 0; i < op.pages.size(); ++i) {
    if (op.pages[i] == KVIST_NO_PAGE) continue;
    if (op.is_load) {
      WritePage(c, op.pages[i], room->second[i]);
    } else {
      room->second[i] = ReadPage(c, op.pages[i]);
      world.observed.changed_under_store += room->second[i] != op.at_start[i] ? 1 : 0;
    }
  }
  ++(op.is_load ? world.observed.swaps_in : world.observed.swaps_out);
}

void Advance(const kvist_client& c, kvist_op id, kvist_result* result) {
  *result = {sizeof *result, KVIST_PENDING, 0, 0, 0, 0, 0};
  const auto found = world.ops.find(id);
  if (found == world.ops.end()) {
    result->status = KVIST_INVALID_ARGUMENT;
    result->pages_released = 1;
    return;
  }
  Op& op = found->second;
  if (++op.polls < world.behaviour.polls_until_end) return;
  result->status = KVIST_OK;
  result->pages_released = 1;
  if (op.cancelled) {
    result->status = KVIST_CANCELLED;
  } else if (op.allocation != 0) {
    EndSwap(c, op, result);
  } else if (op.is_load) {
    EndLoad(c, op, result);
  } else {
    EndStore(c, op, result);
  }
  if (result->pages_released != 0) world.ops.erase(found);
}

void Probe(const kvist_client& c, const kvist_memory& memory) {
  for (uint32_t layer = 0; layer < c.space.layers; ++layer) {
    for (const uint32_t page : {0U, c.pages - 1}) {
      Bytes pattern(c.space.segments * c.space.segment_bytes);
      for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<std::byte>(i * 31 + layer * 7 + page);
      const bool written = memory.write_page(memory.context, layer, page, pattern.data(), pattern.size()) == 0;
      ++(written && ReadLayer(c, layer, page) == pattern ? world.observed.probes_found : world.observed.probes_missed);
    }
  }
}

}  // namespace

namespace fake_kvist {

void Reset(Behaviour behaviour) {
  world = {};
  world.behaviour = behaviour;
}
Behaviour& behaviour() { return world.behaviour; }
Observed observed() {
  Observed result = world.observed;
  result.chunks = world.chunks.size();
  result.ops = world.ops.size();
  result.leases = world.leases.size();
  result.allocations = world.allocations.size();
  return result;
}

}  // namespace fake_kvist

const char* kvist_status_name(kvist_status) { return "STATUS"; }
const char* kvist_error() { return "fake"; }
uint32_t kvist_abi_version() { return KVIST_ABI_VERSION; }
uint32_t kvist_default_chunk_tokens() { return 64; }

kvist_status kvist_chain_create(const kvist_chain_options* options, kvist_chain** chain) {
  *chain = new kvist_chain{options->chunk_tokens, {}, {}};
  return KVIST_OK;
}
void kvist_chain_destroy(kvist_chain* chain) { delete chain; }
kvist_status kvist_chain_append(kvist_chain* chain, const uint32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    chain->tail.push_back(tokens[i]);
    if (chain->tail.size() < chain->chunk_tokens) continue;
    uint64_t hash = 0xcbf29ce484222325;
    kvist_key key = chain->keys.empty() ? kvist_key{} : chain->keys.back();
    for (const uint8_t byte : key.bytes) hash = (hash ^ byte) * 0x100000001b3;
    for (const uint32_t token : chain->tail) hash = (hash ^ token) * 0x100000001b3;
    std::memcpy(key.bytes, &hash, sizeof hash);
    chain->keys.push_back(key);
    chain->tail.clear();
  }
  return KVIST_OK;
}
kvist_status kvist_chain_bind(kvist_chain*, const void*, size_t) { return KVIST_OK; }
const kvist_key* kvist_chain_keys(const kvist_chain* chain, size_t* count) {
  *count = chain->keys.size();
  return chain->keys.data();
}

kvist_status kvist_connect(const kvist_options* options, kvist_client** client) {
  *client = new kvist_client;
  kvist_client& c = **client;
  c.space = *options->space;
  if (options->role == KVIST_SCHEDULER) return KVIST_OK;
  const kvist_memory& memory = *options->memory;
  c.pages = memory.pages;
  c.page_stride = memory.page_stride;
  c.dim_stride = memory.dims[0].stride;
  c.layers.assign(memory.layers, memory.layers + memory.layer_count);
  struct stat memory_file {};
  if (fstat(memory.memfds[0], &memory_file) != 0) return KVIST_INVALID_ARGUMENT;
  c.bytes = static_cast<size_t>(memory_file.st_size);
  c.data = static_cast<std::byte*>(mmap(nullptr, c.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.memfds[0], 0));
  Probe(c, memory);
  return KVIST_OK;
}
kvist_status kvist_disconnect(kvist_client* client) {
  if (client->data != nullptr) munmap(client->data, client->bytes);
  delete client;
  return KVIST_OK;
}
kvist_connection kvist_connection_state(const kvist_client*, uint8_t*) {
  return world.behaviour.away ? KVIST_RECONNECTING : KVIST_CONNECTED;
}
kvist_status kvist_wait_connected(kvist_client*, int64_t) {
  return world.behaviour.away ? KVIST_DEADLINE_EXCEEDED : KVIST_OK;
}

kvist_status kvist_lookup(kvist_client*, const kvist_key* keys, size_t count, uint32_t have, int64_t lease_us, int64_t,
                          kvist_hit* hit) {
  *hit = {};
  if (world.behaviour.away) return KVIST_UNAVAILABLE;
  if (world.behaviour.lookup != KVIST_OK) return world.behaviour.lookup;
  std::vector<Key> found;
  while (found.size() < count && world.chunks.contains(KeyOf(keys[found.size()])))
    found.push_back(KeyOf(keys[found.size()]));
  if (found.empty()) return KVIST_OK;
  hit->chunks = static_cast<uint32_t>(found.size());
  if (lease_us == 0 || hit->chunks <= have || hit->chunks - have > world.behaviour.lease_chunks_max) return KVIST_OK;
  hit->lease = ++world.last_id;
  world.leases.emplace(hit->lease, std::move(found));
  return KVIST_OK;
}
kvist_status kvist_release(kvist_client*, kvist_lease lease) {
  world.leases.erase(lease);
  return KVIST_OK;
}
kvist_status kvist_load(kvist_client*, const kvist_load_args* args, kvist_op* op) {
  if (world.behaviour.away || world.behaviour.refuse_loads) return KVIST_UNAVAILABLE;
  const std::vector<Key>& leased = world.leases.at(args->lease);
  const auto first = leased.begin() + args->first_chunk;
  world.ops.emplace(*op = ++world.last_id,
                    Op{true, {first, first + args->chunk_count}, {args->pages, args->pages + args->page_count}, {}});
  ++world.observed.loads;
  return KVIST_OK;
}
kvist_status kvist_store(kvist_client* client, const kvist_store_args* args, kvist_op* op) {
  if (world.behaviour.away) return KVIST_UNAVAILABLE;
  if (world.behaviour.store_call != KVIST_OK) return world.behaviour.store_call;
  Op store{false, {}, {args->pages, args->pages + args->page_count}, {}};
  for (size_t i = args->first_chunk; i < args->key_count; ++i) store.keys.push_back(KeyOf(args->keys[i]));
  for (const uint32_t page : store.pages) store.at_start.push_back(ReadPage(*client, page));
  world.ops.emplace(*op = ++world.last_id, std::move(store));
  return KVIST_OK;
}
kvist_status kvist_hint(kvist_client*, const kvist_key*, size_t count, const kvist_hint_args* args) {
  if (count == 0 || args->struct_size != sizeof *args) return KVIST_INVALID_ARGUMENT;
  world.observed.hinted += count;
  world.observed.stop_reason = args->stop_reason;
  return KVIST_OK;
}
kvist_status kvist_report_prefill(kvist_client*, uint32_t, uint32_t token_count, int64_t took_us) {
  if (token_count == 0 || took_us <= 0) return KVIST_INVALID_ARGUMENT;
  ++world.observed.prefills;
  return KVIST_OK;
}
kvist_status kvist_alloc(kvist_client*, uint32_t, uint32_t, int64_t, kvist_allocation* allocation) {
  *allocation = 0;
  if (world.behaviour.away || world.behaviour.no_room) return KVIST_RESOURCE_EXHAUSTED;
  world.allocations.emplace(*allocation = ++world.last_id, std::vector<Bytes>{});
  return KVIST_OK;
}
kvist_status kvist_free(kvist_client*, kvist_allocation allocation) {
  world.allocations.erase(allocation);
  return KVIST_OK;
}
kvist_status kvist_swap_out(kvist_client* client, const kvist_swap_args* args, kvist_op* op) {
  if (world.behaviour.away) return KVIST_UNAVAILABLE;
  if (world.behaviour.on_swap_out) world.behaviour.on_swap_out();
  Op swap{false, {}, {args->pages, args->pages + args->page_count}, {}};
  swap.allocation = args->allocation;
  for (const uint32_t page : swap.pages) swap.at_start.push_back(page == KVIST_NO_PAGE ? Bytes{} : ReadPage(*client, page));
  world.ops.emplace(*op = ++world.last_id, std::move(swap));
  return KVIST_OK;
}
kvist_status kvist_swap_in(kvist_client*, const kvist_swap_args* args, kvist_op* op) {
  if (world.behaviour.away) return KVIST_UNAVAILABLE;
  Op swap{true, {}, {args->pages, args->pages + args->page_count}, {}};
  swap.allocation = args->allocation;
  world.ops.emplace(*op = ++world.last_id, std::move(swap));
  return KVIST_OK;
}
kvist_status kvist_wait(kvist_client* client, kvist_op op, uint32_t, int64_t, kvist_result* result) {
  return kvist_poll(client, op, result);
}
kvist_status kvist_poll(kvist_client* client, kvist_op op, kvist_result* result) {
  Advance(*client, op, result);
  return result->status;
}
kvist_status kvist_cancel(kvist_client*, kvist_op op) {
  world.ops.at(op).cancelled = true;
  ++world.observed.cancelled;
  return KVIST_OK;
}
