#ifndef KVIST_CLIENT_H_
#define KVIST_CLIENT_H_

// C++ face of the C ABI in kvist.h: the same calls and promises, with owners that clean up after themselves.
// Header-only, needs nothing but the ABI. No exceptions; every call has a Status or a result that is safe to ignore as a miss.

#include <kvist/kvist.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvist {

// A status with its message. `ok()` is the good case.
struct Status {
  kvist_status code = KVIST_OK;
  std::string message;

  bool ok() const { return code == KVIST_OK; }
  static Status Of(kvist_status code) { return {code, code == KVIST_OK || code == KVIST_PENDING ? "" : kvist_error()}; }
};

// The chunk keys of one request; see kvist_chain_create.
class Chain {
 public:
  Chain() = default;
  explicit Chain(uint32_t chunk_tokens, const char* salt = nullptr, const char* lora = nullptr) {
    const kvist_chain_options options{sizeof options, chunk_tokens, salt, lora};
    kvist_chain* chain = nullptr;
    if (kvist_chain_create(&options, &chain) == KVIST_OK) chain_.reset(chain);
  }
  // After an error keys() grows no more.
  Status Append(std::span<const uint32_t> tokens) {
    return Status::Of(kvist_chain_append(chain_.get(), tokens.data(), tokens.size()));
  }
  // What belongs to the chunk that is filling and isn't a token (an image's hash); see kvist_chain_bind.
  Status Bind(std::string_view extra) { return Status::Of(kvist_chain_bind(chain_.get(), extra.data(), extra.size())); }
  std::span<const kvist_key> keys() const {
    size_t count = 0;
    const kvist_key* keys = kvist_chain_keys(chain_.get(), &count);
    return {keys, count};
  }

 private:
  struct Destroy {
    void operator()(kvist_chain* c) const { kvist_chain_destroy(c); }
  };
  std::unique_ptr<kvist_chain, Destroy> chain_;
};

// Something that the daemon keeps for us under a handle, given back when this goes; must not outlive its client.
template <kvist_status (*GiveBack)(kvist_client*, uint64_t)>
class Owned {
 public:
  Owned() = default;
  Owned(kvist_client* client, uint64_t id) : client_(client), id_(id) {}
  Owned(Owned&& o) noexcept : client_(o.client_), id_(std::exchange(o.id_, 0)) {}
  Owned& operator=(Owned&& o) noexcept {
    Release();
    client_ = o.client_;
    id_ = std::exchange(o.id_, 0);
    return *this;
  }
  ~Owned() { Release(); }

  uint64_t id() const { return id_; }
  explicit operator bool() const { return id_ != 0; }
  void Release() {
    if (id_ != 0) GiveBack(client_, std::exchange(id_, 0));
  }

 private:
  kvist_client* client_ = nullptr;
  uint64_t id_ = 0;
};

// The right that chunks stay.
using Lease = Owned<kvist_release>;

// Slots without keys, of one cache group.
class Allocation : public Owned<kvist_free> {
 public:
  Allocation() = default;
  Allocation(kvist_client* client, kvist_allocation id, uint32_t group) : Owned(client, id), group_(group) {}
  uint32_t group() const { return group_; }

 private:
  uint32_t group_ = 0;
};

// What a lookup found: the first `chunks` keys are there, and stay while `lease` lives.
struct Hit {
  uint32_t chunks = 0;
  uint32_t coming = 0;
  Lease lease;
  kvist_status status = KVIST_OK;
};

// GPU memory: what a copy waits for before it touches the pages.
struct After {
  kvist_after what = KVIST_AFTER_NOTHING;
  void* stream = nullptr;

  static After Stream(void* stream) { return {KVIST_AFTER_STREAM, stream}; }
  static After Layers() { return {KVIST_AFTER_LAYERS, nullptr}; }
};

// One session with kvistd. Move-only; disconnects when it goes.
class Client {
 public:
  Client() = default;
  static Status Connect(const kvist_options& options, Client* client) {
    kvist_client* raw = nullptr;
    const kvist_status status = kvist_connect(&options, &raw);
    if (status == KVIST_OK) client->client_.reset(raw);
    return Status::Of(status);
  }

  // have: the engine's own already (kvist_lookup).
  Hit Lookup(std::span<const kvist_key> keys, int64_t lease_us, int64_t deadline_us = 0, uint32_t have = 0) {
    kvist_hit hit{};
    const kvist_status status = kvist_lookup(client_.get(), keys.data(), keys.size(), have, lease_us, deadline_us, &hit);
    return {hit.chunks, hit.coming, Lease(client_.get(), hit.lease), status};
  }
  // For schedulers that never wait. Returns 0 when it could not start: a miss.
  kvist_op StartLookup(std::span<const kvist_key> keys, int64_t lease_us, int64_t deadline_us = 0, uint32_t have = 0) {
    kvist_op op = 0;
    return kvist_lookup_start(client_.get(), keys.data(), keys.size(), have, lease_us, deadline_us, &op) == KVIST_OK ? op
                                                                                                                     : 0;
  }
  // Of a started lookup; its status is KVIST_PENDING while the answer isn't known.
  Hit LookupResult(kvist_op op, int64_t timeout_us = 0) {
    kvist_hit hit{};
    const kvist_status status = kvist_lookup_result(client_.get(), op, timeout_us, &hit);
    return {hit.chunks, hit.coming, Lease(client_.get(), hit.lease), status};
  }
  // Where chunks are now (kvist_where_start): kvist_tier bits of each, [key].
  Status Where(std::span<const kvist_key> keys, std::vector<uint8_t>* tiers, uint32_t group = 0, int64_t deadline_us = 0) {
    tiers->assign(keys.size(), 0);
    kvist_op op = 0;
    kvist_status status = kvist_where_start(client_.get(), keys.data(), keys.size(), group, deadline_us, &op);
    while (status == KVIST_OK || status == KVIST_PENDING) {
      status = kvist_where_result(client_.get(), op, 1'000'000, tiers->data(), tiers->size());
      if (status == KVIST_OK) break;
    }
    return Status::Of(status);
  }
  // Which chunks of a hit a group needs: [this, chunks).
  uint32_t FirstNeeded(uint32_t group, uint32_t chunks) const { return kvist_first_needed(client_.get(), group, chunks); }
  // Returns 0 when the load could not start (kvist_error() says why): compute instead.
  kvist_op Load(const Lease& lease, uint32_t first_chunk, uint32_t chunk_count, std::span<const uint32_t> pages,
                uint32_t group = 0, After after = {}) {
    kvist_load_args args{};
    args.struct_size = sizeof args;
    args.lease = lease.id();
    args.first_chunk = first_chunk;
    args.chunk_count = chunk_count;
    args.pages = pages.data();
    args.page_count = pages.size();
    args.group = group;
    args.after = after.what;
    args.stream = after.stream;
    kvist_op op = 0;
    return kvist_load(client_.get(), &args, &op) == KVIST_OK ? op : 0;
  }
  // Returns 0 when the store could not start: nothing is lost but a later hit.
  kvist_op Store(std::span<const kvist_key> keys, uint32_t first_chunk, std::span<const uint32_t> pages, uint32_t group = 0,
                 After after = {}) {
    kvist_store_args args{};
    args.struct_size = sizeof args;
    args.keys = keys.data();
    args.key_count = keys.size();
    args.first_chunk = first_chunk;
    args.pages = pages.data();
    args.page_count = pages.size();
    args.group = group;
    args.after = after.what;
    args.stream = after.stream;
    kvist_op op = 0;
    return kvist_store(client_.get(), &args, &op) == KVIST_OK ? op : 0;
  }
  // What is stored survives the daemon when this is OK; *chunks: how many chunks that are.
  Status Flush(int64_t deadline_us, uint32_t* chunks = nullptr) {
    return Status::Of(kvist_flush(client_.get(), deadline_us, chunks));
  }
  // How many chunks are pinned; 0 also when they can't be (kvist_error() says why).
  uint32_t Pin(std::span<const kvist_key> keys, int64_t deadline_us = 0) {
    uint32_t chunks = 0;
    kvist_pin(client_.get(), keys.data(), keys.size(), deadline_us, &chunks);
    return chunks;
  }
  Status Unpin(std::span<const kvist_key> keys, int64_t deadline_us = 0) {
    return Status::Of(kvist_unpin(client_.get(), keys.data(), keys.size(), deadline_us));
  }
  // Chunks that go before all others: their conversation is over.
  Status SessionEnded(std::span<const kvist_key> keys, kvist_stop_reason why = KVIST_STOP_UNKNOWN) {
    const kvist_hint_args args{sizeof args, 1, KVIST_REUSE_UNKNOWN, static_cast<int32_t>(why), 0};
    return Status::Of(kvist_hint(client_.get(), keys.data(), keys.size(), &args));
  }
  // See kvist_report_prefill.
  Status ReportPrefill(uint32_t first_token, uint32_t token_count, int64_t took_us) {
    return Status::Of(kvist_report_prefill(client_.get(), first_token, token_count, took_us));
  }
  // Empty when there is no room (kvist_error() says why).
  Allocation Allocate(uint32_t chunks, uint32_t group = 0, int64_t deadline_us = 0) {
    kvist_allocation id = 0;
    kvist_alloc(client_.get(), group, chunks, deadline_us, &id);
    return Allocation(client_.get(), id, group);
  }
  // Layers [first_layer, +layer_count) of chunks from the allocation's `first_chunk` on, out of or into pages; layer_count 0: all
  // that follow. 0 when it could not start.
  kvist_op SwapOut(const Allocation& allocation, uint32_t first_chunk, uint32_t chunk_count, std::span<const uint32_t> pages,
                   uint32_t first_layer = 0, uint32_t layer_count = 0, After after = {}) {
    const kvist_swap_args args = SwapArgs(allocation, first_chunk, chunk_count, pages, first_layer, layer_count, after);
    kvist_op op = 0;
    return kvist_swap_out(client_.get(), &args, &op) == KVIST_OK ? op : 0;
  }
  kvist_op SwapIn(const Allocation& allocation, uint32_t first_chunk, uint32_t chunk_count, std::span<const uint32_t> pages,
                  uint32_t first_layer = 0, uint32_t layer_count = 0, After after = {}) {
    const kvist_swap_args args = SwapArgs(allocation, first_chunk, chunk_count, pages, first_layer, layer_count, after);
    kvist_op op = 0;
    return kvist_swap_in(client_.get(), &args, &op) == KVIST_OK ? op : 0;
  }
  kvist_result Wait(kvist_op op, int64_t timeout_us, uint32_t layers = KVIST_ALL_LAYERS) {
    kvist_result result = Unknown();
    kvist_wait(client_.get(), op, layers, timeout_us, &result);
    return result;
  }
  // See kvist_wait_on_stream and kvist_pages_ready.
  Status WaitOnStream(kvist_op op, void* stream, uint32_t layers = KVIST_ALL_LAYERS) {
    return Status::Of(kvist_wait_on_stream(client_.get(), op, layers, stream));
  }
  Status PagesReady(kvist_op op, uint32_t layers, void* stream) {
    return Status::Of(kvist_pages_ready(client_.get(), op, layers, stream));
  }
  Status BusBusy(int64_t for_us) { return Status::Of(kvist_bus_busy(client_.get(), for_us)); }
  kvist_result Poll(kvist_op op) {
    kvist_result result = Unknown();
    kvist_poll(client_.get(), op, &result);
    return result;
  }
  Status Cancel(kvist_op op) { return Status::Of(kvist_cancel(client_.get(), op)); }
  Status WaitConnected(int64_t timeout_us) { return Status::Of(kvist_wait_connected(client_.get(), timeout_us)); }
  kvist_connection connection() const { return kvist_connection_state(client_.get(), nullptr); }
  kvist_client* get() const { return client_.get(); }
  explicit operator bool() const { return client_ != nullptr; }

 private:
  static kvist_result Unknown() {  // until something is known
    kvist_result result{};
    result.struct_size = sizeof result;
    result.status = KVIST_INTERNAL;
    return result;
  }
  static kvist_swap_args SwapArgs(const Allocation& allocation, uint32_t first_chunk, uint32_t chunk_count,
                                  std::span<const uint32_t> pages, uint32_t first_layer, uint32_t layer_count, After after) {
    return {sizeof(kvist_swap_args),
            allocation.id(),
            allocation.group(),
            first_chunk,
            chunk_count,
            pages.data(),
            pages.size(),
            first_layer,
            layer_count,
            0,
            after.what,
            after.stream};
  }
  struct Disconnect {
    void operator()(kvist_client* c) const { kvist_disconnect(c); }
  };
  std::unique_ptr<kvist_client, Disconnect> client_;
};

}  // namespace kvist

#endif  // KVIST_CLIENT_H_
