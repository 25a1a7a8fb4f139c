// Row 30 of the fault matrix: clients that speak the protocol wrongly. Each wrong thing gets a typed error or ends its own session;
// kvistd and an honest engine beside it don't notice.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>

#include "proto/session.pb.h"
#include "storage/base/clock.h"
#include "storage/base/shm/frame_socket.h"
#include "storage/base/shm/futex.h"
#include "storage/base/shm/probe_pattern.h"
#include "storage/base/shm/ring.h"
#include "tests/support/bystander.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/temp_dir.h"

namespace session = kvist::session::v1;
namespace shm = kvist::shm;
using kvist::test::Bystander;
using kvist::test::DaemonProcess;
using kvist::test::kProvoked;
using kvist::test::RawClient;
using kvist::test::TempDir;

namespace {

shm::Entry Good(shm::Opcode opcode, uint32_t cell) {
  static uint32_t sequence = 100;
  shm::Entry entry{};
  entry.opcode = opcode;
  entry.cell = cell;
  entry.sequence = ++sequence;
  entry.deadline_nanos = kvist::MonotonicNanos() + 10'000'000'000;
  return entry;
}

// A 32-bit field's value made of `v`, but not the one that would be right.
uint32_t Other(uint64_t v, uint32_t right) {
  return static_cast<uint32_t>(v) == right ? right + 1 : static_cast<uint32_t>(v);
}

// AddressSanitizer keeps freed memory for a while, and ThreadSanitizer megabytes for each thread, so there resident memory says nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Of the pairs of fields that could be wrong at once; ThreadSanitizer takes a minute for all.
#ifdef __SANITIZE_THREAD__
constexpr size_t kStep = 11;
#else
constexpr size_t kStep = 1;
#endif

constexpr uint32_t kChunks = 4, kPagesPerChunk = 2;  // of the lease and the allocation that right entries name
constexpr uint32_t kKeysAt = 64 << 10;               // of those chunks, in the arena; elsewhere it holds zeros

// What the session has that an entry may name.
struct Held {
  uint64_t lease = 0, allocation = 0;
};

constexpr shm::Opcode kAnswered[] = {
    shm::Opcode::kLookup, shm::Opcode::kLoad,     shm::Opcode::kStore,   shm::Opcode::kPin,    shm::Opcode::kUnpin,
    shm::Opcode::kFlush,  shm::Opcode::kAllocate, shm::Opcode::kSwapOut, shm::Opcode::kSwapIn, shm::Opcode{0},
    shm::Opcode{15},      shm::Opcode{0xe7},      shm::Opcode{UINT8_MAX}};

bool IsCopy(shm::Opcode opcode) {
  return opcode == shm::Opcode::kLoad || opcode == shm::Opcode::kStore || opcode == shm::Opcode::kSwapOut ||
         opcode == shm::Opcode::kSwapIn;
}
bool HasKeys(shm::Opcode opcode) {
  return opcode == shm::Opcode::kLookup || opcode == shm::Opcode::kStore || opcode == shm::Opcode::kPin ||
         opcode == shm::Opcode::kUnpin || opcode == shm::Opcode::kHint;
}

// A right entry of the opcode.
shm::Entry Right(shm::Opcode opcode, uint32_t cell, const Held& held) {
  shm::Entry entry = Good(opcode, cell);
  entry.arena = kKeysAt;
  if (HasKeys(opcode)) entry.keys = kChunks;
  if (IsCopy(opcode)) entry.pages = kChunks * kPagesPerChunk;
  if (opcode == shm::Opcode::kAllocate || (IsCopy(opcode) && opcode != shm::Opcode::kStore)) entry.chunks = kChunks;
  if (IsCopy(opcode)) entry.lease = opcode == shm::Opcode::kLoad ? held.lease : held.allocation;
  if (opcode == shm::Opcode::kPrefill) {
    entry.chunks = 1000;
    entry.took_nanos = 1'000'000;
  }
  return entry;
}

// Whether the entry is one that a connector may send, by what layout.h says of it; page ids are right in all of the arena.
bool WellFormed(const shm::Entry& entry, const Held& held) {
  const bool store = entry.opcode == shm::Opcode::kStore, copy = IsCopy(entry.opcode);
  const uint64_t parent = store && (entry.flags & shm::kHasParent) != 0 ? 1 : 0;
  const uint64_t bytes = uint64_t{entry.keys} * sizeof(kvist_key) + uint64_t{entry.pages} * sizeof(uint32_t);
  if (entry.keys > (HasKeys(entry.opcode) ? shm::kKeysMax + parent : 0)) return false;
  if (entry.pages > (copy ? shm::kPagesMax : 0)) return false;
  if (entry.arena % shm::kArenaBytes.value + bytes > shm::kArenaBytes.value) return false;
  switch (entry.opcode) {
    case shm::Opcode::kLookup:
    case shm::Opcode::kPin:
    case shm::Opcode::kUnpin:
    case shm::Opcode::kFlush: return true;
    case shm::Opcode::kAllocate: return entry.group == 0 && entry.chunks > 0 && entry.chunks <= shm::kKeysMax;
    default: break;
  }
  if (!copy || entry.group != 0 || (entry.flags & shm::kAfterStream) != 0) return false;  // it has no GPU
  if (store && entry.keys <= parent) return false;
  const uint64_t chunks = store ? entry.keys - parent : entry.chunks;
  if (entry.pages != chunks * kPagesPerChunk) return false;
  if (store) return true;
  return entry.lease == (entry.opcode == shm::Opcode::kLoad ? held.lease : held.allocation) && chunks > 0 &&
         uint64_t{entry.first_chunk} + chunks <= kChunks && entry.layer.first_layer < RawClient::kLayers &&
         uint64_t{entry.layer.first_layer} + entry.layer.layers <= RawClient::kLayers;
}

// One field of an entry, made what it is wrong to be, or only unusual.
struct Twist {
  const char* field;
  uint64_t value;
  void (*set)(shm::Entry* entry, uint64_t value);
};
const std::vector<Twist> kTwists = [] {
  std::vector<Twist> twists;
  const auto add = [&](const char* field, std::initializer_list<uint64_t> values, void (*set)(shm::Entry*, uint64_t)) {
    for (const uint64_t value : values) twists.push_back({field, value, set});
  };
  constexpr uint64_t k31 = uint64_t{1} << 31, k63 = uint64_t{1} << 63;
  add("keys", {0, 1, 2, 4096, 4097, 4098, 1 << 19, k31, UINT32_MAX},
      [](auto* e, uint64_t v) { e->keys = static_cast<uint32_t>(v); });
  add("pages", {0, 1, 2, 4, 8192, 1 << 19, (1 << 19) + 1, k31, UINT32_MAX},
      [](auto* e, uint64_t v) { e->pages = static_cast<uint32_t>(v); });
  add("arena", {0, 1, shm::kArenaBytes.value - 32, shm::kArenaBytes.value - 1, k63, UINT64_MAX},
      [](auto* e, uint64_t v) { e->arena = v; });
  add("flags", {1, 2, 3, 4, UINT8_MAX}, [](auto* e, uint64_t v) { e->flags = static_cast<uint8_t>(v); });
  add("group", {1, 1 << 15, UINT16_MAX}, [](auto* e, uint64_t v) { e->group = static_cast<uint16_t>(v); });
  add("chunks", {0, 1, 2, 4096, 4097, k31, UINT32_MAX}, [](auto* e, uint64_t v) { e->chunks = static_cast<uint32_t>(v); });
  add("first_chunk", {1, 3, 4, k31, UINT32_MAX - 3, UINT32_MAX},
      [](auto* e, uint64_t v) { e->first_chunk = static_cast<uint32_t>(v); });
  add("first_layer", {1, 2, k31, UINT32_MAX}, [](auto* e, uint64_t v) { e->layer.first_layer = static_cast<uint32_t>(v); });
  add("layers", {1, 2, 3, k31, UINT32_MAX}, [](auto* e, uint64_t v) { e->layer.layers = static_cast<uint32_t>(v); });
  add("lease", {0, 1, k63, UINT64_MAX}, [](auto* e, uint64_t v) { e->lease = v; });
  add("deadline", {0, 1, k63, UINT64_MAX, INT64_MAX},
      [](auto* e, uint64_t v) { e->deadline_nanos = static_cast<int64_t>(v); });
  return twists;
}();

// A session that has stored chunks, leased them, and has an allocation.
Held Hold(RawClient* client) {
  uint32_t cell = 0;
  const auto ask = [&](shm::Entry entry) {
    client->Submit(entry);
    REQUIRE(client->Status(entry) == absl::StatusCode::kOk);
    return client->memory.cell(entry.cell)->lease;
  };
  for (uint32_t c = 0; c < kChunks; ++c) client->memory.arena()[kKeysAt + c * sizeof(kvist_key)] = std::byte(c + 1);
  ask(Right(shm::Opcode::kStore, cell++, {}));
  shm::Entry lookup = Right(shm::Opcode::kLookup, cell++, {});
  lookup.lease_nanos = 60'000'000'000;
  Held held;
  held.lease = ask(lookup);
  REQUIRE(held.lease != 0);
  held.allocation = ask(Right(shm::Opcode::kAllocate, cell++, {}));
  ask(Right(shm::Opcode::kSwapOut, cell++, held));
  return held;
}

}  // namespace

TEST_CASE("Row 30: lengths and counts of every size in a Hello are refused by name") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  using Change = std::function<void(session::Hello*, uint64_t)>;
  struct Field {
    const char* name;
    std::vector<const char*> words;  // of which the refusal has one
    Change change;
    absl::StatusCode code = absl::StatusCode::kInvalidArgument;
    size_t memfds = 1;  // that come with the Hello
  };
  const auto small = [](uint64_t v) { return static_cast<uint32_t>(v); };
  const auto name = [](uint64_t v, bool required) { return std::string(v == 0 && required ? 0 : 300 + v % 1000, 'x'); };
  const auto space = [](session::Hello* h) { return h->mutable_space(); };
  const auto group = [](session::Hello* h) { return h->mutable_space()->mutable_groups(0); };
  const auto pages = [](session::Hello* h) { return h->mutable_memory()->mutable_groups(0); };
  const auto device = [](session::Hello* h) {  // a region of a GPU whose every number could be right
    auto* region = h->mutable_memory()->add_device_regions();
    region->set_device(std::string(16, 'u'));
    region->set_handle(std::string(64, 'h'));
    region->set_length(RawClient::kPages * RawClient::kLayers * RawClient::kSegmentBytes);
    return region;
  };
  constexpr auto kUnserved = absl::StatusCode::kFailedPrecondition, kInvalid = absl::StatusCode::kInvalidArgument;
  const std::vector<Field> fields = {
      {"protocol_version",
       {"protocol version"},
       [&](auto* h, uint64_t v) { h->set_protocol_version(Other(v, shm::kVersion)); },
       kUnserved},
      {"role",
       {"the role is"},
       [&](auto* h, uint64_t v) {
         const int role = static_cast<int>(small(v));
         h->set_role(static_cast<session::Hello::Role>(role == session::Hello::ROLE_SCHEDULER ? 3 : role));
       }},
      {"role of one with memory",
       {"a scheduler has no KV memory"},
       [&](auto* h, uint64_t) { h->set_role(session::Hello::ROLE_SCHEDULER); }},
      {"rank", {"rank is"}, [&](auto* h, uint64_t v) { h->set_rank(Other(v, 0)); }},
      {"rank of several",
       {"rank is"},
       [&](auto* h, uint64_t v) {
         space(h)->set_tensor_parallel(2);
         space(h)->set_pipeline_parallel(2);
         h->set_rank(std::max<uint32_t>(small(v), 4));
       }},
      {"page_tokens",
       {"page_tokens is"},
       [&](auto* h, uint64_t v) { space(h)->set_page_tokens(Other(v, 1) == 2 ? 0 : Other(v, 1)); }},
      {"chunk_tokens",
       {"chunk_tokens is", "chunk_tokens 1 is"},
       [&](auto* h, uint64_t v) { space(h)->set_chunk_tokens(small(v)); }},
      {"tensor_parallel",
       {"tensor_parallel is"},
       [&](auto* h, uint64_t v) { space(h)->set_tensor_parallel(v == 1 ? 65 : small(v)); }},
      {"pipeline_parallel",
       {"pipeline_parallel is"},
       [&](auto* h, uint64_t v) { space(h)->set_pipeline_parallel(v == 1 ? 65 : small(v)); }},
      {"ranks in all",
       {"tensor_parallel * pipeline_parallel is"},
       [&](auto* h, uint64_t v) {
         space(h)->set_tensor_parallel(2 + v % 63);
         space(h)->set_pipeline_parallel(64);
       }},
      {"slot_order",
       {"slot order"},
       [&](auto* h, uint64_t v) {
         space(h)->set_slot_order(static_cast<session::Space::SlotOrder>(static_cast<int>(small(v) == 1 ? 2 : small(v))));
       },
       kUnserved},
      {"kind",
       {"the kind of a cache group is"},
       [&](auto* h, uint64_t v) {
         group(h)->set_kind(static_cast<session::Space::Group::Kind>(static_cast<int>(small(v) == 1 ? 4 : small(v))));
       }},
      {"layers",
       {"layers is", "the memory has 2 layers, the space 1"},
       [&](auto* h, uint64_t v) { group(h)->set_layers(small(v)); }},
      {"segments",
       {"segments is", "give 1 segments, the space has 2"},
       [&](auto* h, uint64_t v) { group(h)->set_segments(v == 1 ? 2 : small(v)); }},
      {"segment_bytes", {"segment_bytes is"}, [&](auto* h, uint64_t v) { group(h)->set_segment_bytes(v == 1 ? 0 : v); }},
      {"segments * segment_bytes",
       {"bytes of a page in one layer is"},
       [&](auto* h, uint64_t v) {
         group(h)->set_segments(2 + v % 1023);
         group(h)->set_segment_bytes(1 << 30);
       }},
      {"layers * segment_bytes",
       {"bytes of a chunk on one rank is"},
       [&](auto* h, uint64_t v) {
         group(h)->set_layers(9 + v % 50);
         group(h)->set_segment_bytes(1 << 30);
       }},
      {"pages",
       {"pages: is 0", "bytes of 17 pages", "pages (page_stride"},
       [&](auto* h, uint64_t v) { pages(h)->set_pages(Other(v, 1) == 2 ? 17 : Other(v, 1)); }},
      {"page_stride", {"page_stride"}, [&](auto* h, uint64_t v) { pages(h)->set_page_stride(v); }},
      {"layer offset",
       {"layers[1].offset"},
       [&](auto* h, uint64_t v) { h->mutable_memory()->mutable_layers(1)->set_offset(v <= 1 ? UINT64_MAX - 100 : v); }},
      {"layer region",
       {"layers[1].region"},
       [&](auto* h, uint64_t v) { h->mutable_memory()->mutable_layers(1)->set_region(Other(v, 0)); }},
      {"dim count",
       {"the count of a dimension is", "the dimensions of a page give 2 segments"},
       [&](auto* h, uint64_t v) {
         auto* d = pages(h)->add_dims();
         d->set_count(v == 1 ? 2 : small(v));
         d->set_stride(1);
       }},
      {"dim stride",
       {"the stride of a dimension is", "segment_offsets"},
       [&](auto* h, uint64_t v) {
         group(h)->set_segments(2);
         auto* d = pages(h)->add_dims();
         d->set_count(2);
         d->set_stride(v);
       }},
      {"more dims",
       {"dimensions, allowed are 4"},
       [&](auto* h, uint64_t v) {
         for (uint64_t i = 0; i < 5 + v % 100; ++i) pages(h)->add_dims()->set_count(1);
       }},
      {"instance", {"the length of instance is"}, [&](auto* h, uint64_t v) { h->set_instance(name(v, true)); }},
      {"model", {"the length of model is"}, [&](auto* h, uint64_t v) { space(h)->set_model(name(v, true)); }},
      {"revision", {"the length of revision is"}, [&](auto* h, uint64_t v) { space(h)->set_revision(name(v, false)); }},
      {"kv_dtype", {"the length of kv_dtype is"}, [&](auto* h, uint64_t v) { space(h)->set_kv_dtype(name(v, true)); }},
      {"layout", {"the length of layout is"}, [&](auto* h, uint64_t v) { space(h)->set_layout(name(v, false)); }},
      {"more layers",
       {"layers, the space 2"},
       [&](auto* h, uint64_t v) {
         for (uint64_t i = 0; i <= v % 3000; ++i) h->mutable_memory()->add_layers();
       }},
      {"page_tokens of a group",
       {"page_tokens"},
       [&](auto* h, uint64_t v) { group(h)->set_page_tokens(small(v) <= 1 ? 3 : small(v)); }},
      {"window",
       {"window_tokens is"},
       [&](auto* h, uint64_t v) {
         group(h)->set_kind(session::Space::Group::KIND_WINDOW);
         group(h)->set_window_tokens(small(v) == 1 ? 0 : small(v));
       }},
      {"more groups",
       {"the number of cache groups is", "cache groups, the space"},
       [&](auto* h, uint64_t v) {
         for (uint64_t i = 0; i <= v % 100; ++i) {
           *space(h)->add_groups() = h->space().groups(0);
           for (uint32_t layer = 0; layer < RawClient::kLayers; ++layer) h->mutable_memory()->add_layers();
         }
       }},
      {"more groups of memory",
       {"the memory has 2 cache groups"},
       [&](auto* h, uint64_t) { h->mutable_memory()->add_groups(); }},
      {"no group", {"the number of cache groups is 0"}, [&](auto* h, uint64_t) { space(h)->clear_groups(); }},
      {"no space", {"the length of model is 0"}, [&](auto* h, uint64_t) { h->clear_space(); }},
      {"no memory", {"the memory has 0 layers"}, [&](auto* h, uint64_t) { h->clear_memory(); }},
      {"no memfds", {"memfds"}, [&](auto*, uint64_t) {}, kInvalid, 0},
      {"more memfds", {"memfds[1] is one too many"}, [&](auto*, uint64_t) {}, kInvalid, 2},
      {"many more memfds", {"memfds[1] is one too many"}, [&](auto*, uint64_t) {}, kInvalid, shm::kFrameFdsMax},
      {"more process_regions",
       {"the number of process_regions is"},
       [&](auto* h, uint64_t v) {
         for (uint64_t i = 0; i < 1025 + v % 1000; ++i) {
           auto* region = h->mutable_memory()->add_process_regions();
           region->set_address(v);
           region->set_length(v);
         }
       },
       kInvalid,
       0},
      {"process_regions address + length",
       {"process_regions[0]"},
       [&](auto* h, uint64_t v) {
         auto* region = h->mutable_memory()->add_process_regions();
         region->set_address(UINT64_MAX - 10);
         region->set_length(v);
       },
       kInvalid,
       0},
      {"process_regions length",  // of what is mapped at its start
       {"process_regions[0]"},
       [&](auto* h, uint64_t v) {
         auto* region = h->mutable_memory()->add_process_regions();
         region->set_address(reinterpret_cast<uintptr_t>(&daemon));
         region->set_length(v == 1 ? UINT64_MAX : v);
       },
       kInvalid,
       0},
      {"process_regions address",
       {"process_regions[1]"},
       [&](auto* h, uint64_t v) {
         auto* region = h->mutable_memory()->add_process_regions();
         region->set_address(reinterpret_cast<uintptr_t>(&daemon));
         region->set_length(1);
         region = h->mutable_memory()->add_process_regions();
         region->set_address(v);
         region->set_length(uint64_t{1} << 62);
       },
       kInvalid,
       0},
      {"more device_regions",
       {"the number of device_regions is"},
       [&](auto* h, uint64_t v) {
         for (uint64_t i = 0; i < 513 + v % 100; ++i) device(h);
       },
       kInvalid,
       0},
      {"device_regions offset + length",
       {"device_regions[0].length is"},
       [&](auto* h, uint64_t v) {
         auto* region = device(h);
         region->set_offset(v);
         region->set_length(-v);  // 2^64 in all
       },
       kInvalid,
       0},
      {"device_regions device",
       {"device_regions[1].device"},
       [&](auto* h, uint64_t v) {
         device(h);
         device(h)->set_device(std::string(v % 100 == 16 ? 17 : v % 100, 'u'));
       },
       kInvalid,
       0},
      {"device_regions of two GPUs",
       {"device_regions[1].device"},
       [&](auto* h, uint64_t) {
         device(h);
         device(h)->set_device(std::string(16, 'v'));
       },
       kInvalid,
       0},
      {"device_regions handle",
       {"device_regions[1].handle"},
       [&](auto* h, uint64_t v) {
         device(h);
         device(h)->set_handle(std::string(v % 1000 == 64 ? 65 : v % 1000, 'h'));
       },
       kInvalid,
       0},
      {"device_regions beside a memfd", {"device_regions came beside memfds"}, [&](auto* h, uint64_t) { device(h); }},
  };
  // 2^32 and above wrap to 0 in 32-bit fields: both are worth a try.
  const uint64_t values[] = {0,
                             1,
                             UINT32_MAX,
                             uint64_t{1} << 31,
                             (uint64_t{1} << 31) + 1,
                             uint64_t{1} << 32,
                             uint64_t{1} << 62,
                             uint64_t{1} << 63,
                             UINT64_MAX,
                             UINT64_MAX - 4096};
  ::prctl(PR_SET_PTRACER, daemon.pid());  // where yama would keep it from process_regions
  uint32_t frames = 0;
  const uint64_t before = daemon.ResidentBytes() / 1024;
  for (const Field& field : fields) {
    for (const uint64_t value : values) {
      RawClient client(daemon);
      session::ClientFrame frame = RawClient::GoodHello();
      field.change(frame.mutable_hello(), value);
      client.SendBytes(frame.SerializeAsString(), std::vector<int>(field.memfds, client.memfd()));
      const auto answer = client.Receive();
      INFO(field.name << " = " << value);
      REQUIRE(answer != nullptr);
      REQUIRE(answer->has_refused());
      CHECK(absl::StatusCodeToString(static_cast<absl::StatusCode>(answer->refused().code())) ==
            absl::StatusCodeToString(field.code));
      const std::string& message = answer->refused().message();
      INFO(message);
      CHECK(std::any_of(field.words.begin(), field.words.end(),
                        [&](const char* words) { return message.find(words) != std::string::npos; }));
      ++frames;
    }
  }
  const uint64_t after = daemon.ResidentBytes() / 1024;
  std::printf("row 30: %u bad Hellos refused by name, resident memory %lu -> %lu KiB\n", frames, before, after);
  if (!kSanitized) CHECK(after < before + 4096);
  for (const uint32_t rank : {0, 1}) {  // what they were, but for one field, is welcome: each rank of several, too
    RawClient client(daemon);
    session::ClientFrame frame = RawClient::GoodHello();
    frame.mutable_hello()->mutable_space()->set_tensor_parallel(2);
    frame.mutable_hello()->set_rank(rank);
    client.Open(frame, client.memfd());
  }
}

TEST_CASE("Row 30: garbage instead of a handshake ends that connection only") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  std::mt19937 random(7);
  const std::string good = RawClient::GoodHello().SerializeAsString();
  for (int i = 0; i < 300; ++i) {
    RawClient client(daemon);
    std::string bytes = good;
    if (i % 3 == 0) {  // noise
      bytes.resize(1 + random() % 2000);
      for (char& c : bytes) c = static_cast<char>(random());
    } else if (i % 3 == 1) {  // flipped bits
      for (int flips = 0; flips < 4; ++flips) bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    } else {  // cut short
      bytes.resize(1 + random() % (bytes.size() - 1));
    }
    // With too few, too many or wrong descriptors.
    std::vector<int> fds(random() % 3, 2);
    client.SendBytes(bytes, fds);
  }
  {
    RawClient client(daemon);
    client.SendBytes("x", std::vector<int>(shm::kFrameFdsMax, 2));
    CHECK(client.HungUp());
  }
  {
    RawClient client(daemon);  // twice the handshake
    client.Open();
    client.Send(RawClient::GoodHello());
    CHECK(client.HungUp());
  }
}

TEST_CASE("Row 30: lengths and counts of every size in ring entries get a typed error in their cell") {
  TempDir dir;
  std::vector<std::string> settings = kProvoked;
  settings.push_back("lease.max=60s");
  DaemonProcess daemon(dir.path(), settings);
  Bystander bystander(daemon);
  RawClient client(daemon);
  client.Open();
  const Held held = Hold(&client);
  const uint64_t before = daemon.ResidentBytes() / 1024;
  uint32_t entries = 0, refused = 0;
  for (const shm::Opcode opcode : kAnswered) {
    uint32_t taken = 0;
    for (size_t i = 0; i < kTwists.size(); ++i) {
      for (size_t j = i; j < kTwists.size(); j += kStep) {  // i == j: that field only
        shm::Entry entry = Right(opcode, entries++ % shm::kCells, held);
        kTwists[i].set(&entry, kTwists[i].value);
        kTwists[j].set(&entry, kTwists[j].value);
        client.Submit(entry);
        const absl::StatusCode code = client.Status(entry);
        const bool right = WellFormed(entry, held);
        const auto is = [&](std::initializer_list<absl::StatusCode> codes) {
          return std::find(codes.begin(), codes.end(), code) != codes.end();
        };
        using enum absl::StatusCode;
        const bool late = entry.deadline_nanos <= 1, flush = opcode == shm::Opcode::kFlush;
        const bool as_it_should = !right  ? is({kInvalidArgument, kAborted}) || (late && is({kDeadlineExceeded}))
                                  : late  ? is({kDeadlineExceeded})
                                  : flush ? is({kFailedPrecondition})  // it has no disk
                                  : opcode == shm::Opcode::kAllocate ? is({kOk, kResourceExhausted})
                                                                     : is({kOk});
        if (!as_it_should) {
          FAIL_CHECK("opcode " << static_cast<int>(opcode) << " with " << kTwists[i].field << " = " << kTwists[i].value
                               << " and " << kTwists[j].field << " = " << kTwists[j].value
                               << (right ? " is right" : " is wrong") << ", and got code " << static_cast<int>(code));
        }
        refused += !right;
        taken += code == kOk;
        if (code == kOk && opcode == shm::Opcode::kAllocate) {
          shm::Entry free = Good(shm::Opcode::kFree, 0);
          free.lease = client.memory.cell(entry.cell)->lease;
          client.Submit(free);
        }
      }
    }
    INFO("opcode " << static_cast<int>(opcode));
    const bool can_be_taken =
        opcode != shm::Opcode::kFlush && opcode >= shm::Opcode::kLookup && opcode <= shm::Opcode::kPrefill;
    CHECK((taken > 0) == can_be_taken);
  }
  const uint64_t after = daemon.ResidentBytes() / 1024;
  std::printf(
      "row 30: %u ring entries with one or two fields from 0 to 2^64 - 1 answered, %u of them wrong and refused, resident "
      "memory %lu -> %lu KiB\n",
      entries, refused, before, after);
  CHECK(refused > 0);
  if (!kSanitized)
    CHECK(after < before + 32768);  // the session's own arena is 4 MiB, and pages that good stores filled count
}

TEST_CASE("Row 30: page ids that aren't the session's are refused") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  RawClient client(daemon);
  client.Open();
  const Held held = Hold(&client);
  uint32_t cell = 100;
  for (const shm::Opcode opcode : {shm::Opcode::kLoad, shm::Opcode::kStore, shm::Opcode::kSwapOut, shm::Opcode::kSwapIn}) {
    for (const uint32_t at : {0u, 3u, kChunks * kPagesPerChunk - 1}) {
      for (const uint32_t id : {0u, RawClient::kPages - 1, RawClient::kPages, 1u << 31, UINT32_MAX - 1, UINT32_MAX}) {
        const shm::Entry entry = Right(opcode, cell++, held);
        std::byte* const where = client.memory.arena() + kKeysAt + entry.keys * sizeof(kvist_key) + at * sizeof(uint32_t);
        uint32_t before;
        std::memcpy(&before, where, sizeof before);
        std::memcpy(where, &id, sizeof id);
        client.Submit(entry);
        const absl::StatusCode code = client.Status(entry);
        std::memcpy(where, &before, sizeof before);
        INFO("opcode " << static_cast<int>(opcode) << ", page " << id << " at " << at);
        // Who loads may leave pages out, who stores may not.
        const bool right = id < RawClient::kPages || (id == UINT32_MAX && opcode != shm::Opcode::kStore);
        CHECK(code == (right ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument));
      }
    }
  }
}

TEST_CASE("Row 30: large requests that are refused leave nothing behind") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  session::ClientFrame hello = RawClient::GoodHello();  // with as many pages a chunk as can be
  hello.mutable_hello()->mutable_space()->set_page_tokens(1);
  hello.mutable_hello()->mutable_space()->set_chunk_tokens(shm::kPagesMax / shm::kKeysMax);
  RawClient client(daemon);
  client.Open(hello, client.memfd());
  std::memset(client.memory.arena(), 0, shm::kArenaBytes.value);  // its own, before it counts
  const auto ask = [&](uint32_t cell) {
    shm::Entry load = Good(shm::Opcode::kLoad, cell);
    load.chunks = shm::kKeysMax;
    load.pages = shm::kPagesMax;
    load.lease = 12345;
    client.Submit(load);
    CHECK(client.Status(load) == absl::StatusCode::kAborted);
  };
  ask(0);
  const uint64_t before = daemon.ResidentBytes() / 1024;
  for (uint32_t cell = 0; cell < shm::kCells; ++cell) ask(cell);
  const uint64_t after = daemon.ResidentBytes() / 1024;
  std::printf("row 30: %u loads of %u pages refused, resident memory %lu -> %lu KiB\n", shm::kCells, shm::kPagesMax, before,
              after);
  if (!kSanitized) CHECK(after < before + 8192);
}

TEST_CASE("Row 30: what is wrong in entries without an answer ends their session, and what is right doesn't") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  uint32_t ended = 0, went_on = 0;
  for (const shm::Opcode opcode :
       {shm::Opcode::kRelease, shm::Opcode::kFree, shm::Opcode::kCancel, shm::Opcode::kHint, shm::Opcode::kPrefill}) {
    for (const Twist& twist : kTwists) {
      RawClient client(daemon);
      client.Open();
      shm::Entry entry = Right(opcode, 0, {});
      twist.set(&entry, twist.value);
      bool right = true;  // releases, frees and cancels of nothing are nothing
      if (opcode == shm::Opcode::kPrefill) right = entry.chunks > 0 && entry.took_nanos > 0;
      if (opcode == shm::Opcode::kHint) {
        right = entry.keys <= shm::kKeysMax &&
                entry.arena % shm::kArenaBytes.value + entry.keys * sizeof(kvist_key) <= shm::kArenaBytes.value &&
                entry.hint.session_ended <= 1 && entry.hint.expected_reuse <= KVIST_REUSE_NEVER &&
                entry.hint.stop_reason <= KVIST_STOP_TOOL_CALL;
      }
      INFO("opcode " << static_cast<int>(opcode) << " with " << twist.field << " = " << twist.value);
      client.Submit(entry);
      if (right) {
        const shm::Entry lookup = Right(shm::Opcode::kLookup, 1, {});
        client.Submit(lookup);
        CHECK(client.Status(lookup) == absl::StatusCode::kOk);
        ++went_on;
      } else {
        CHECK(client.HungUp());
        ++ended;
      }
    }
  }
  std::printf("row 30: %u sessions ended by a wrong entry that has no answer, %u with a right one went on\n", ended,
              went_on);
  CHECK(ended > 0);
  CHECK(went_on > 0);
}

TEST_CASE("Row 30: a packet longer than any frame ends its connection, told why") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  const size_t fds = daemon.OpenFds();
  const uint64_t before = daemon.ResidentBytes() / 1024;
  for (const size_t more : {size_t{1}, shm::kFrameBytesMax}) {
    for (const bool open : {false, true}) {
      for (int i = 0; i < 20; ++i) {
        INFO(more << " bytes too many" << (open ? ", after the handshake" : ""));
        RawClient client(daemon);
        if (open) client.Open();
        const std::string bytes(shm::kFrameBytesMax + more, '\0');
        REQUIRE(::send(client.socket(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
        const auto answer = client.Receive();
        REQUIRE(answer != nullptr);
        CHECK_THAT(answer->refused().message(), Catch::Contains(std::to_string(shm::kFrameBytesMax)));
        CHECK(client.HungUp());
      }
    }
  }
  CHECK(kvist::test::FdsFallTo(daemon, fds));
  const uint64_t after = daemon.ResidentBytes() / 1024;
  std::printf("row 30: 80 packets of more than %zu bytes refused, resident memory %lu -> %lu KiB\n", shm::kFrameBytesMax,
              before, after);
  if (!kSanitized) CHECK(after < before + 4096);
}

TEST_CASE("Row 30: what can't be answered ends the session of who sent it") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  for (const uint32_t cell : {shm::kCells, 1u << 31, UINT32_MAX}) {
    RawClient client(daemon);
    client.Open();
    client.Submit(Good(shm::Opcode::kLookup, cell));
    CHECK(client.HungUp());
  }
}

TEST_CASE("Row 34: a client that scribbles over the shared memory hurts itself only") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  std::mt19937_64 random(3);
  constexpr uint32_t kRounds = 20;
  uint32_t ended = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    RawClient client(daemon);
    client.Open();
    auto* words = reinterpret_cast<uint64_t*>(client.memory.ring());
    const size_t count = shm::kEntries * sizeof(shm::Entry) / 8 + shm::kCells * sizeof(shm::Cell) / 8;
    for (size_t i = 0; i < count; ++i) words[i] = random();
    client.Announce(1 + static_cast<uint32_t>(random() % shm::kEntries));
    ended += client.HungUp();
  }
  const bool crashed = daemon.Ended().has_value();
  std::printf("row 34: %u sessions whose shared memory was scribbled over, %u of them ended, kvistd crashed %d\n", kRounds,
              ended, crashed ? 1 : 0);
  CHECK(ended == kRounds);
  REQUIRE(!crashed);
}
