#include <kvist/kvist.h>

#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#include "connector/src/client.h"
#include "connector/src/error.h"
#include "connector/src/sized.h"
#include "storage/base/chunk_key.h"

// The C ABI over connector::Client and KeyChain: checks pointers, reports errors and what is thrown (no memory), and nothing else.

struct kvist_client {
  std::unique_ptr<kvist::connector::Client> impl;
};
struct kvist_chain {
  kvist::KeyChain impl;
  // Something of the prompt isn't in it (no memory): what comes later would be hashed as if it followed what came before, and named wrongly.
  bool broken = false;
};

static_assert(sizeof(kvist_key) == sizeof(kvist::ChunkKey) && alignof(kvist_key) == alignof(kvist::ChunkKey),
              "keys are passed through as they are");

namespace {

using kvist::connector::CheckSize;
using kvist::connector::GiveSized;
using kvist::connector::Report;
using kvist::connector::ReportThrown;
using kvist::connector::Sized;

kvist_status Missing(const char* what) {
  return Report(absl::InvalidArgumentError(std::string(what) + " is missing (NULL)"));
}

kvist_status Broken() {
  return Report(
      absl::FailedPreconditionError("an earlier call of this chain failed, so its keys end there: begin another one"));
}

kvist_status Started(const absl::StatusOr<kvist_op>& started, kvist_op* op) {
  if (!started.ok()) return Report(started.status());
  *op = *started;
  return KVIST_OK;
}

// What begins an operation by arguments of a size.
template <class Args, class Begins>
kvist_status Begin(const kvist_client* client, const Args* args, kvist_op* op, Begins begins) {
  if (op == nullptr) return Missing("op");
  *op = 0;
  if (client == nullptr) return Missing("client");
  const absl::StatusOr<Args> sized = Sized(args);
  return sized.ok() ? Started(begins(*sized), op) : Report(sized.status());
}

const kvist::ChunkKey* Keys(const kvist_key* keys) { return reinterpret_cast<const kvist::ChunkKey*>(keys); }

}  // namespace

extern "C" {

uint32_t kvist_abi_version(void) { return KVIST_ABI_VERSION; }
uint32_t kvist_default_chunk_tokens(void) { return 256; }
const char* kvist_error(void) { return kvist::connector::LastError(); }

const char* kvist_status_name(kvist_status status) {
  switch (status) {
    case KVIST_OK: return "OK";
    case KVIST_PENDING: return "PENDING";
    case KVIST_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case KVIST_FAILED_PRECONDITION: return "FAILED_PRECONDITION";
    case KVIST_RESOURCE_EXHAUSTED: return "RESOURCE_EXHAUSTED";
    case KVIST_UNAVAILABLE: return "UNAVAILABLE";
    case KVIST_DEADLINE_EXCEEDED: return "DEADLINE_EXCEEDED";
    case KVIST_ABORTED: return "ABORTED";
    case KVIST_CANCELLED: return "CANCELLED";
    case KVIST_PERMISSION_DENIED: return "PERMISSION_DENIED";
    case KVIST_DATA_LOSS: return "DATA_LOSS";
    case KVIST_INTERNAL: return "INTERNAL";
  }
  return "UNKNOWN";
}

kvist_status kvist_chain_create(const kvist_chain_options* caller_options, kvist_chain** chain) try {
  if (chain == nullptr) return Missing("chain");
  const absl::StatusOr<kvist_chain_options> options = Sized(caller_options);
  if (!options.ok()) return Report(options.status());
  if (options->chunk_tokens == 0) return Report(absl::InvalidArgumentError("chunk_tokens is 0"));
  const auto text = [](const char* s) { return s == nullptr ? std::string_view() : std::string_view(s); };
  *chain =
      new kvist_chain{kvist::KeyChain(kvist::Tokens{options->chunk_tokens}, {text(options->lora), text(options->salt)})};
  return KVIST_OK;
} catch (...) { return ReportThrown(); }

void kvist_chain_destroy(kvist_chain* chain) { delete chain; }

kvist_status kvist_chain_append(kvist_chain* chain, const uint32_t* tokens, size_t count) try {
  if (chain == nullptr || (tokens == nullptr && count > 0)) return Missing("chain or tokens");
  if (chain->broken) return Broken();
  chain->impl.Append({tokens, count});
  return KVIST_OK;
} catch (...) {
  chain->broken = true;
  return ReportThrown();
}

kvist_status kvist_chain_bind(kvist_chain* chain, const void* extra, size_t size) try {
  if (chain == nullptr || (extra == nullptr && size > 0) || size > UINT32_MAX) return Missing("chain or extra");
  if (chain->broken) return Broken();
  chain->impl.Bind({static_cast<const char*>(extra), size});
  return KVIST_OK;
} catch (...) {
  chain->broken = true;
  return ReportThrown();
}

const kvist_key* kvist_chain_keys(const kvist_chain* chain, size_t* count) {
  if (count != nullptr) *count = chain == nullptr ? 0 : chain->impl.keys().size();
  return chain == nullptr ? nullptr : reinterpret_cast<const kvist_key*>(chain->impl.keys().data());
}

kvist_status kvist_connect(const kvist_options* options, kvist_client** client) try {
  if (client == nullptr) return Missing("client");
  const absl::StatusOr<kvist_options> sized = Sized(options);
  if (!sized.ok()) return Report(sized.status());
  auto impl = kvist::connector::Client::Create(*sized);
  if (!impl.ok()) return Report(impl.status());
  *client = new kvist_client{*std::move(impl)};
  return KVIST_OK;
} catch (...) { return ReportThrown(); }

kvist_status kvist_disconnect(kvist_client* client) try {
  const std::unique_ptr<kvist_client> ends(client);
  return client == nullptr ? KVIST_OK : Report(client->impl->End());
} catch (...) { return ReportThrown(); }

kvist_connection kvist_connection_state(const kvist_client* client, uint8_t space_digest[32]) {
  return client == nullptr ? KVIST_RECONNECTING : client->impl->connection(space_digest);
}

kvist_status kvist_wait_connected(kvist_client* client, int64_t timeout_us) try {
  if (client == nullptr) return Missing("client");
  return Report(client->impl->WaitConnected(timeout_us));
} catch (...) { return ReportThrown(); }

kvist_status kvist_lookup(kvist_client* client, const kvist_key* keys, size_t count, uint32_t have, int64_t lease_us,
                          int64_t deadline_us, kvist_hit* hit) try {
  if (hit == nullptr) return Missing("hit");
  *hit = kvist_hit{};
  if (client == nullptr || (keys == nullptr && count > 0)) return Missing("client or keys");
  return Report(client->impl->Lookup({Keys(keys), count}, have, lease_us, deadline_us, hit));
} catch (...) { return ReportThrown(); }

kvist_status kvist_lookup_start(kvist_client* client, const kvist_key* keys, size_t count, uint32_t have, int64_t lease_us,
                                int64_t deadline_us, kvist_op* op) try {
  if (op == nullptr) return Missing("op");
  *op = 0;
  if (client == nullptr || (keys == nullptr && count > 0)) return Missing("client or keys");
  return Started(client->impl->LookupStart({Keys(keys), count}, have, lease_us, deadline_us), op);
} catch (...) { return ReportThrown(); }

kvist_status kvist_lookup_result(kvist_client* client, kvist_op op, int64_t timeout_us, kvist_hit* hit) try {
  if (hit == nullptr) return Missing("hit");
  *hit = kvist_hit{};
  if (client == nullptr) return Missing("client");
  const std::optional<absl::Status> answer = client->impl->LookupResult(op, timeout_us, hit);
  return answer.has_value() ? Report(*answer) : KVIST_PENDING;
} catch (...) { return ReportThrown(); }

kvist_status kvist_where_start(kvist_client* client, const kvist_key* keys, size_t count, uint32_t group,
                               int64_t deadline_us, kvist_op* op) try {
  if (op == nullptr) return Missing("op");
  *op = 0;
  if (client == nullptr || keys == nullptr) return Missing("client or keys");
  return Started(client->impl->WhereStart({Keys(keys), count}, group, deadline_us), op);
} catch (...) { return ReportThrown(); }

kvist_status kvist_where_result(kvist_client* client, kvist_op op, int64_t timeout_us, uint8_t* tiers, size_t count) try {
  if (client == nullptr || tiers == nullptr) return Missing("client or tiers");
  const std::optional<absl::Status> answer = client->impl->WhereResult(op, timeout_us, {tiers, count});
  return answer.has_value() ? Report(*answer) : KVIST_PENDING;
} catch (...) { return ReportThrown(); }

uint32_t kvist_first_needed(const kvist_client* client, uint32_t group, uint32_t chunks) {
  return client == nullptr ? 0 : client->impl->FirstNeeded(group, chunks);
}

kvist_status kvist_release(kvist_client* client, kvist_lease lease) try {
  if (client == nullptr) return Missing("client");
  return Report(client->impl->Release(lease));
} catch (...) { return ReportThrown(); }

kvist_status kvist_load(kvist_client* client, const kvist_load_args* args, kvist_op* op) try {
  return Begin(client, args, op, [client](const kvist_load_args& sized) { return client->impl->Load(sized); });
} catch (...) { return ReportThrown(); }

kvist_status kvist_store(kvist_client* client, const kvist_store_args* args, kvist_op* op) try {
  return Begin(client, args, op, [client](const kvist_store_args& sized) { return client->impl->Store(sized); });
} catch (...) { return ReportThrown(); }

kvist_status kvist_pin(kvist_client* client, const kvist_key* keys, size_t count, int64_t deadline_us,
                       uint32_t* chunks) try {
  uint32_t pinned = 0;
  if (chunks == nullptr) chunks = &pinned;
  *chunks = 0;
  if (client == nullptr || (keys == nullptr && count > 0)) return Missing("client or keys");
  return Report(client->impl->Pin(kvist::shm::Opcode::kPin, {Keys(keys), count}, deadline_us, chunks));
} catch (...) { return ReportThrown(); }

kvist_status kvist_unpin(kvist_client* client, const kvist_key* keys, size_t count, int64_t deadline_us) try {
  if (client == nullptr || (keys == nullptr && count > 0)) return Missing("client or keys");
  uint32_t chunks = 0;
  return Report(client->impl->Pin(kvist::shm::Opcode::kUnpin, {Keys(keys), count}, deadline_us, &chunks));
} catch (...) { return ReportThrown(); }

kvist_status kvist_flush(kvist_client* client, int64_t deadline_us, uint32_t* chunks) try {
  uint32_t durable = 0;
  if (chunks == nullptr) chunks = &durable;
  *chunks = 0;
  if (client == nullptr) return Missing("client");
  return Report(client->impl->Flush(deadline_us, chunks));
} catch (...) { return ReportThrown(); }

kvist_status kvist_hint(kvist_client* client, const kvist_key* keys, size_t count, const kvist_hint_args* args) try {
  if (client == nullptr || (keys == nullptr && count > 0)) return Missing("client or keys");
  const absl::StatusOr<kvist_hint_args> sized = Sized(args);
  return Report(sized.ok() ? client->impl->Hint({Keys(keys), count}, *sized) : sized.status());
} catch (...) { return ReportThrown(); }

kvist_status kvist_report_prefill(kvist_client* client, uint32_t first_token, uint32_t token_count, int64_t took_us) try {
  if (client == nullptr) return Missing("client");
  return Report(client->impl->ReportPrefill(first_token, token_count, took_us));
} catch (...) { return ReportThrown(); }

kvist_status kvist_alloc(kvist_client* client, uint32_t group, uint32_t chunk_count, int64_t deadline_us,
                         kvist_allocation* allocation) try {
  if (allocation == nullptr) return Missing("allocation");
  *allocation = 0;
  if (client == nullptr) return Missing("client");
  const auto allocated = client->impl->Allocate(group, chunk_count, deadline_us);
  if (!allocated.ok()) return Report(allocated.status());
  *allocation = *allocated;
  return KVIST_OK;
} catch (...) { return ReportThrown(); }

kvist_status kvist_free(kvist_client* client, kvist_allocation allocation) try {
  if (client == nullptr) return Missing("client");
  return Report(client->impl->Free(allocation));
} catch (...) { return ReportThrown(); }

kvist_status kvist_swap_out(kvist_client* client, const kvist_swap_args* args, kvist_op* op) try {
  return Begin(client, args, op, [client](const kvist_swap_args& sized) { return client->impl->SwapOut(sized); });
} catch (...) { return ReportThrown(); }

kvist_status kvist_swap_in(kvist_client* client, const kvist_swap_args* args, kvist_op* op) try {
  return Begin(client, args, op, [client](const kvist_swap_args& sized) { return client->impl->SwapIn(sized); });
} catch (...) { return ReportThrown(); }

kvist_status kvist_wait(kvist_client* client, kvist_op op, uint32_t layers, int64_t timeout_us, kvist_result* result) try {
  if (client == nullptr || result == nullptr) return Missing("client or kvist_result");
  if (const absl::Status size = CheckSize<kvist_result>(result->struct_size); !size.ok()) return Report(size);
  kvist_result whole{};
  whole.struct_size = sizeof whole;
  whole.status = KVIST_INTERNAL;  // also when something is thrown: then nothing is known of the pages
  GiveSized(whole, result);
  const absl::Status status = client->impl->Wait(op, layers, timeout_us, &whole);
  GiveSized(whole, result);
  return Report(status);
} catch (...) { return ReportThrown(); }

kvist_status kvist_poll(kvist_client* client, kvist_op op, kvist_result* result) try {
  return kvist_wait(client, op, KVIST_ALL_LAYERS, 0, result);
} catch (...) { return ReportThrown(); }

kvist_status kvist_wait_on_stream(kvist_client* client, kvist_op op, uint32_t layers, void* stream) try {
  if (client == nullptr) return Missing("client");
  return Report(client->impl->WaitOnStream(op, layers, stream));
} catch (...) { return ReportThrown(); }

kvist_status kvist_pages_ready(kvist_client* client, kvist_op op, uint32_t layers, void* stream) try {
  if (client == nullptr) return Missing("client");
  return Report(client->impl->PagesReady(op, layers, stream));
} catch (...) { return ReportThrown(); }

kvist_status kvist_bus_busy(kvist_client* client, int64_t for_us) try {
  if (client == nullptr) return Missing("client");
  return Report(client->impl->BusBusy(for_us));
} catch (...) { return ReportThrown(); }

kvist_status kvist_cancel(kvist_client* client, kvist_op op) try {
  if (client == nullptr) return Missing("client");
  return Report(client->impl->Cancel(op));
} catch (...) { return ReportThrown(); }

}  // extern "C"
