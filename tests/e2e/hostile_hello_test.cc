// Row 30 of the fault matrix: handshakes that are wrong. Each gets a typed error that names the field, or ends its own connection; kvistd and
// an honest engine beside it don't notice.
#include <catch2/catch.hpp>

#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/session.pb.h"
#include "storage/base/shm/frame_socket.h"
#include "tests/support/bystander.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/growth.h"
#include "tests/support/raw_client.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"

namespace session = kvist::session::v1;
namespace shm = kvist::shm;
using kvist::test::Bystander;
using kvist::test::CheckGrowth;
using kvist::test::DaemonProcess;
using kvist::test::kProvoked;
using kvist::test::kSanitized;
using kvist::test::RawClient;
using kvist::test::TempDir;

namespace {

// A 32-bit field's value made of `v`, but not the one that would be right.
uint32_t Other(uint64_t v, uint32_t right) {
  return static_cast<uint32_t>(v) == right ? right + 1 : static_cast<uint32_t>(v);
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
  CheckGrowth(daemon, "Hellos with one bad field, refused by its name", [&] {
    uint32_t frames = 0;
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
    return frames;
  });
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

TEST_CASE("Row 30: a packet longer than any frame ends its connection, told why") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  const size_t fds = daemon.OpenFds();
  CheckGrowth(daemon, "packets of more bytes than a frame may have", [&] {
    uint32_t packets = 0;
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
          ++packets;
        }
      }
    }
    return packets;
  });
  CHECK(kvist::test::FdsFallTo(daemon, fds));
}
