#include "tests/unit/replay/lying_kvist.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

struct kvist_chain {
  uint32_t chunk_tokens = 0;
  std::vector<uint32_t> tail;
  std::vector<kvist_key> keys;
};

struct kvist_client {
  kvist_space space{};
  kvist_memory memory{};
  std::vector<kvist_layer> layers;
  std::vector<kvist_dim> dims;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

namespace {

using lying_kvist::Lie;
using Key = std::string;

struct World {
  lying_kvist::Behaviour behaviour;
  std::map<Key, std::vector<std::byte>> chunks;
  Key first_chunk;
  std::map<kvist_lease, std::vector<Key>> leases;
  std::map<kvist_op, kvist_result> ops;
  uint64_t last_id = 0;
};
World world;

Key KeyOf(const kvist_key& key) { return {reinterpret_cast<const char*>(key.bytes), sizeof key.bytes}; }

uint32_t PagesPerChunk(const kvist_client& c) { return c.space.chunk_tokens / c.space.page_tokens; }

// Calls f(place in the page memory, place in the chunk's bytes) for all pieces of one chunk.
template <class F>
void ForEachPiece(const kvist_client& c, const uint32_t* pages, F f) {
  size_t at = 0;
  for (uint32_t layer = 0; layer < c.space.layers; ++layer) {
    for (uint32_t page = 0; page < PagesPerChunk(c); ++page) {
      for (uint32_t segment = 0; segment < c.space.segments; ++segment, at += c.space.segment_bytes) {
        f(c.data + c.layers[layer].offset + pages[page] * c.memory.page_stride + segment * c.dims[0].stride, at);
      }
    }
  }
}

kvist_op Begin(kvist_status status, uint32_t copied, uint32_t skipped, uint32_t refused) {
  world.ops[++world.last_id] = {sizeof(kvist_result), status, 0, copied, skipped, refused, 1};
  return world.last_id;
}

}  // namespace

namespace lying_kvist {

void Reset(Behaviour behaviour) {
  world = {};
  world.behaviour = behaviour;
}
Behaviour& behaviour() { return world.behaviour; }
size_t chunks() { return world.chunks.size(); }
size_t leases() { return world.leases.size(); }

}  // namespace lying_kvist

const char* kvist_status_name(kvist_status status) { return status == KVIST_OK ? "OK" : "NOT OK"; }
const char* kvist_error() { return "as it was told"; }

kvist_status kvist_chain_create(const kvist_chain_options* options, kvist_chain** chain) {
  *chain = new kvist_chain{options->chunk_tokens, {}, {}};
  return KVIST_OK;
}
void kvist_chain_destroy(kvist_chain* chain) { delete chain; }
kvist_status kvist_chain_append(kvist_chain* chain, const uint32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    chain->tail.push_back(tokens[i]);
    if (chain->tail.size() < chain->chunk_tokens) continue;
    kvist_key key = chain->keys.empty() ? kvist_key{} : chain->keys.back();
    uint64_t hash = 0xcbf2'9ce4'8422'2325;
    for (const uint8_t byte : key.bytes) hash = (hash ^ byte) * 0x100'0000'01b3;
    for (const uint32_t token : chain->tail) hash = (hash ^ token) * 0x100'0000'01b3;
    std::memcpy(key.bytes, &hash, sizeof hash);
    chain->keys.push_back(key);
    chain->tail.clear();
  }
  return KVIST_OK;
}
const kvist_key* kvist_chain_keys(const kvist_chain* chain, size_t* count) {
  *count = chain->keys.size();
  return chain->keys.data();
}

kvist_status kvist_connect(const kvist_options* options, kvist_client** client) {
  auto* c = new kvist_client;
  c->space = options->space;
  if (options->memory != nullptr) {
    c->memory = *options->memory;
    c->layers.assign(c->memory.layers, c->memory.layers + c->memory.layer_count);
    c->dims.assign(c->memory.dims, c->memory.dims + c->memory.dim_count);
    c->bytes = c->dims[0].count * c->dims[0].stride * c->layers.size();
    c->data = static_cast<std::byte*>(mmap(nullptr, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->memory.memfds[0], 0));
  }
  *client = c;
  return KVIST_OK;
}
void kvist_disconnect(kvist_client* client) {
  if (client->data != nullptr) munmap(client->data, client->bytes);
  delete client;
}
kvist_status kvist_wait_connected(kvist_client*, int64_t) { return KVIST_OK; }

kvist_status kvist_lookup(kvist_client*, const kvist_key* keys, size_t count, int64_t lease_us, int64_t, kvist_hit* hit) {
  *hit = {};
  if (world.behaviour.lookup != KVIST_OK) return world.behaviour.lookup;
  std::vector<Key> path;
  for (size_t i = 0; i < count && world.chunks.count(KeyOf(keys[i])) > 0; ++i) path.push_back(KeyOf(keys[i]));
  hit->chunks = static_cast<uint32_t>(path.size());
  if (path.empty() || lease_us == 0 || hit->chunks > world.behaviour.lease_chunks_max) return KVIST_OK;
  hit->lease = ++world.last_id;
  world.leases[hit->lease] = std::move(path);
  return KVIST_OK;
}
kvist_status kvist_release(kvist_client*, kvist_lease lease) {
  world.leases.erase(lease);
  return KVIST_OK;
}

kvist_status kvist_load(kvist_client* client, const kvist_load_args* args, kvist_op* op) {
  const std::vector<Key>& path = world.leases.at(args->lease);
  const Lie lie = world.behaviour.lie;
  for (uint32_t i = 0; i < args->chunk_count && lie != Lie::kNotOneByte; ++i) {
    const std::vector<std::byte>& bytes =
        world.chunks.at(lie == Lie::kOtherChunk ? world.first_chunk : path.at(args->first_chunk + i));
    ForEachPiece(*client, args->pages + size_t{i} * PagesPerChunk(*client), [&](std::byte* piece, size_t at) {
      const bool first = i == 0 && at == 0;
      if (first && lie == Lie::kMissingPiece) return;
      std::memcpy(piece, bytes.data() + at, client->space.segment_bytes);
      if (first && lie == Lie::kFlippedByte) piece[client->space.segment_bytes - 1] ^= std::byte{4};
    });
  }
  *op = Begin(world.behaviour.load, world.behaviour.load == KVIST_OK ? args->chunk_count : 0, 0, 0);
  return KVIST_OK;
}

kvist_status kvist_store(kvist_client* client, const kvist_store_args* args, kvist_op* op) {
  if (world.behaviour.store_call != KVIST_OK) return world.behaviour.store_call;
  const size_t chunk_bytes =
      client->space.layers * PagesPerChunk(*client) * client->space.segments * client->space.segment_bytes;
  uint32_t copied = 0, skipped = 0, refused = 0;
  for (size_t i = args->first_chunk; i < args->key_count; ++i) {
    const Key key = KeyOf(args->keys[i]);
    if (world.chunks.count(key) > 0) {
      ++skipped;
    } else if (world.chunks.size() >= world.behaviour.chunks_max) {
      ++refused;
    } else {
      std::vector<std::byte> bytes(chunk_bytes);
      ForEachPiece(
          *client, args->pages + (i - args->first_chunk) * PagesPerChunk(*client),
          [&](const std::byte* piece, size_t at) { std::copy_n(piece, client->space.segment_bytes, bytes.data() + at); });
      if (world.chunks.empty()) world.first_chunk = key;
      world.chunks.emplace(key, std::move(bytes));
      ++copied;
    }
  }
  *op = Begin(KVIST_OK, copied, skipped, refused);
  return KVIST_OK;
}

kvist_status kvist_wait(kvist_client*, kvist_op op, uint32_t, int64_t, kvist_result* result) {
  const auto found = world.ops.find(op);
  if (found == world.ops.end()) return KVIST_INVALID_ARGUMENT;
  *result = found->second;
  world.ops.erase(found);
  return result->status;
}
kvist_status kvist_poll(kvist_client* client, kvist_op op, kvist_result* result) {
  return kvist_wait(client, op, 0, 0, result);
}
kvist_status kvist_cancel(kvist_client*, kvist_op) { return KVIST_OK; }
