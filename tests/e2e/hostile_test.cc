// Row 30 of the fault matrix: clients that speak the protocol wrongly. Each wrong thing gets a typed error or ends its own session;
// kvistd and an honest engine beside it don't notice.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

// AddressSanitizer keeps freed memory for a while, so there resident memory says nothing.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace

TEST_CASE("Row 30: lengths and counts of every size in a Hello are refused by name") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  using Change = std::function<void(session::Hello*, uint64_t)>;
  const std::vector<std::pair<const char*, Change>> fields = {
      {"protocol_version", [](auto* h, uint64_t v) { h->set_protocol_version(Other(v, shm::kVersion)); }},
      {"rank", [](auto* h, uint64_t v) { h->set_rank(Other(v, 0)); }},
      {"page_tokens", [](auto* h, uint64_t v) { h->mutable_space()->set_page_tokens(Other(v, 1) == 2 ? 0 : Other(v, 1)); }},
      {"chunk_tokens", [](auto* h, uint64_t v) { h->mutable_space()->set_chunk_tokens(static_cast<uint32_t>(v)); }},
      {"tensor_parallel",
       [](auto* h, uint64_t v) { h->mutable_space()->set_tensor_parallel(static_cast<uint32_t>(v == 1 ? 65 : v)); }},
      {"pipeline_parallel",
       [](auto* h, uint64_t v) { h->mutable_space()->set_pipeline_parallel(static_cast<uint32_t>(v == 1 ? 65 : v)); }},
      {"layers", [](auto* h, uint64_t v) { h->mutable_space()->mutable_groups(0)->set_layers(static_cast<uint32_t>(v)); }},
      {"segments",
       [](auto* h, uint64_t v) {
         h->mutable_space()->mutable_groups(0)->set_segments(static_cast<uint32_t>(v == 1 ? 2 : v));
       }},
      {"segment_bytes",
       [](auto* h, uint64_t v) { h->mutable_space()->mutable_groups(0)->set_segment_bytes(v == 1 ? 0 : v); }},
      {"pages",
       [](auto* h, uint64_t v) { h->mutable_memory()->mutable_groups(0)->set_pages(Other(v, 1) == 2 ? 17 : Other(v, 1)); }},
      {"page_stride", [](auto* h, uint64_t v) { h->mutable_memory()->mutable_groups(0)->set_page_stride(v); }},
      {"layer offset",
       [](auto* h, uint64_t v) { h->mutable_memory()->mutable_layers(1)->set_offset(v <= 1 ? UINT64_MAX - 100 : v); }},
      {"layer region", [](auto* h, uint64_t v) { h->mutable_memory()->mutable_layers(1)->set_region(Other(v, 0)); }},
      {"dim count",
       [](auto* h, uint64_t v) {
         auto* d = h->mutable_memory()->mutable_groups(0)->add_dims();
         d->set_count(static_cast<uint32_t>(v == 1 ? 2 : v));
         d->set_stride(1);
       }},
      {"dim stride",
       [](auto* h, uint64_t v) {
         auto* d = h->mutable_memory()->mutable_groups(0)->add_dims();
         d->set_count(2);
         d->set_stride(v);
       }},
      {"instance", [](auto* h, uint64_t v) { h->set_instance(std::string(v == 0 ? 0 : 300 + v % 1000, 'x')); }},
      {"model", [](auto* h, uint64_t v) { h->mutable_space()->set_model(std::string(v == 0 ? 0 : 300 + v % 1000, 'x')); }},
      {"more layers",
       [](auto* h, uint64_t v) {
         for (uint64_t i = 0; i <= v % 3000; ++i) h->mutable_memory()->add_layers();
       }},
      {"page_tokens of a group",
       [](auto* h, uint64_t v) {
         h->mutable_space()->mutable_groups(0)->set_page_tokens(static_cast<uint32_t>(v) <= 1 ? 3
                                                                                              : static_cast<uint32_t>(v));
       }},
      {"window",
       [](auto* h, uint64_t v) {
         auto* group = h->mutable_space()->mutable_groups(0);
         group->set_kind(session::Space::Group::KIND_WINDOW);
         group->set_window_tokens(static_cast<uint32_t>(v) == 1 ? 0 : static_cast<uint32_t>(v));
       }},
      {"more groups",
       [](auto* h, uint64_t v) {
         for (uint64_t i = 0; i <= v % 100; ++i) *h->mutable_space()->add_groups() = h->space().groups(0);
       }},
      {"more groups of memory", [](auto* h, uint64_t) { h->mutable_memory()->add_groups(); }},
      {"no group", [](auto* h, uint64_t) { h->mutable_space()->clear_groups(); }},
      {"no space", [](auto* h, uint64_t) { h->clear_space(); }},
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
  uint32_t frames = 0;
  const uint64_t before = daemon.ResidentBytes() / 1024;
  for (const auto& [field, change] : fields) {
    for (const uint64_t value : values) {
      RawClient client(daemon);
      session::ClientFrame frame = RawClient::GoodHello();
      change(frame.mutable_hello(), value);
      client.Send(frame);
      const auto answer = client.Receive();
      INFO(field << " = " << value);
      REQUIRE(answer != nullptr);
      CHECK(answer->has_refused());
      CHECK(!answer->refused().message().empty());
      ++frames;
    }
  }
  const uint64_t after = daemon.ResidentBytes() / 1024;
  std::printf("row 30: %u bad Hellos refused by name, resident memory %lu -> %lu KiB\n", frames, before, after);
  if (!kSanitized) CHECK(after < before + 4096);
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
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  RawClient client(daemon);
  client.Open();
  const uint64_t before = daemon.ResidentBytes() / 1024;
  const uint32_t counts[] = {0, 1, 2, 4096, 4097, 4098, 1u << 19, (1u << 19) + 1, 1u << 31, UINT32_MAX};
  uint32_t entries = 0;
  for (const shm::Opcode opcode : {shm::Opcode::kLookup, shm::Opcode::kLoad, shm::Opcode::kStore,
                                   static_cast<shm::Opcode>(0), static_cast<shm::Opcode>(999)}) {
    for (const uint32_t keys : counts) {
      for (const uint32_t pages : counts) {
        for (const uint64_t arena : {uint64_t{0}, shm::kArenaBytes.value - 32, uint64_t{1} << 63, UINT64_MAX}) {
          shm::Entry entry = Good(opcode, entries % shm::kCells);
          entry.keys = keys;
          entry.pages = pages;
          entry.arena = arena;
          entry.flags = static_cast<uint8_t>(entries % 5);
          entry.chunks = counts[entries % std::size(counts)];
          entry.first_chunk = counts[entries / 7 % std::size(counts)];
          entry.layer.first_layer = counts[entries / 3 % std::size(counts)];
          entry.lease = entries % 2 == 0 ? UINT64_MAX : 1;
          entry.group = static_cast<uint16_t>(entries);
          client.Submit(entry);
          const absl::StatusCode code = client.Status(entry);
          // A well-formed one may pass: a lookup of zeros misses, a store of zeros in group 0 is a store.
          if (opcode != shm::Opcode::kLookup && opcode != shm::Opcode::kStore) CHECK(code != absl::StatusCode::kOk);
          ++entries;
        }
      }
    }
  }
  const uint64_t after = daemon.ResidentBytes() / 1024;
  std::printf("row 30: %u ring entries with lengths from 0 to 2^64 - 1 answered, resident memory %lu -> %lu KiB\n", entries,
              before, after);
  if (!kSanitized)
    CHECK(after < before + 32768);  // the session's own arena is 4 MiB, and pages that good stores filled count
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
