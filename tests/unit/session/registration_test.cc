#include "daemon/session/registration.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <set>
#include <string>

#include "proto/session.pb.h"
#include "storage/base/shm/layout.h"

namespace session = kvist::session;
namespace v1 = kvist::session::v1;

namespace {

v1::Hello Scheduler() {
  v1::Hello hello;
  hello.set_protocol_version(kvist::shm::kVersion);
  hello.set_instance("engine");
  hello.set_role(v1::Hello::ROLE_SCHEDULER);
  v1::Space& space = *hello.mutable_space();
  space.set_model("m");
  space.set_revision("r");
  space.set_kv_dtype("bf16");
  space.set_page_tokens(16);
  space.set_chunk_tokens(256);
  space.set_tensor_parallel(2);
  space.set_pipeline_parallel(1);
  space.set_slot_order(v1::Space::SLOT_ORDER_LAYER_MAJOR);
  v1::Space::Group& group = *space.add_groups();
  group.set_kind(v1::Space::Group::KIND_FULL);
  group.set_layers(4);
  group.set_segments(2);
  group.set_segment_bytes(1024);
  return hello;
}

}  // namespace

TEST_CASE("CheckHello gives every description that differs a digest of its own") {
  std::set<kvist::SpaceDigest> digests;
  const auto add = [&](const std::function<void(v1::Space*)>& change, const std::string& tenant = "t") {
    v1::Hello hello = Scheduler();
    change(hello.mutable_space());
    const auto registration = session::CheckHello(hello, {}, tenant, session::Peer{});
    REQUIRE(registration.ok());
    CHECK(digests.insert(registration->space.digest).second);
  };
  add([](v1::Space*) {});
  add([](v1::Space*) {}, "u");
  add([](v1::Space* s) {
    s->set_model("mr");
    s->set_revision("");
  });  // not the same as "m", "r" run together
  add([](v1::Space* s) { s->set_model("m2"); });
  add([](v1::Space* s) { s->set_revision("r2"); });
  add([](v1::Space* s) { s->set_kv_dtype("fp8"); });
  add([](v1::Space* s) { s->set_layout("HND"); });
  add([](v1::Space* s) { s->set_page_tokens(32); });
  add([](v1::Space* s) { s->set_chunk_tokens(512); });
  add([](v1::Space* s) { s->set_tensor_parallel(4); });
  add([](v1::Space* s) {
    s->set_tensor_parallel(1);
    s->set_pipeline_parallel(2);
  });
  add([](v1::Space* s) { s->mutable_groups(0)->set_layers(5); });
  add([](v1::Space* s) { s->mutable_groups(0)->set_segments(1); });
  add([](v1::Space* s) { s->mutable_groups(0)->set_segment_bytes(2048); });
}

TEST_CASE("CheckHello leaves the instance and the rank out of the space") {
  v1::Hello other = Scheduler();
  other.set_instance("another");
  other.set_rank(1);
  CHECK(session::CheckHello(Scheduler(), {}, "t", session::Peer{})->space.digest ==
        session::CheckHello(other, {}, "t", session::Peer{})->space.digest);
}

TEST_CASE("CheckHello refuses names with characters that a terminal would heed") {
  for (const std::string name : {"a\nb", "a\033[2J", "a\x7f", "a\u009b31m"}) {
    v1::Hello hello = Scheduler();
    hello.mutable_space()->set_model(name);
    const absl::Status status = session::CheckHello(hello, {}, "t", session::Peer{}).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Catch::Contains("control character"));
  }
  v1::Hello hello = Scheduler();
  hello.mutable_space()->set_model("m\u00e5lare \u6a21\u578b");
  CHECK(session::CheckHello(hello, {}, "t", session::Peer{}).ok());
}

TEST_CASE("CheckHello refuses memory of a process that kvistd can't see, with that reason") {
  v1::Hello worker = Scheduler();
  worker.set_role(v1::Hello::ROLE_WORKER);
  v1::KvMemory& memory = *worker.mutable_memory();
  for (int i = 0; i < 4; ++i) memory.add_layers();
  memory.add_groups()->set_pages(16);
  v1::KvMemory::ProcessRegion& region = *memory.add_process_regions();
  region.set_address(4096);
  region.set_length(1 << 20);
  session::Peer peer;  // its number is 0, as the kernel has it of a process in another pid namespace
  peer.uid = ::geteuid();
  const absl::Status status = session::CheckHello(worker, {}, "t", peer).status();
  CHECK(absl::IsPermissionDenied(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("pid namespace") && Catch::Contains("memfds"));
}

TEST_CASE("CheckHello derives what a chunk takes in a slot on each rank") {
  const auto registration = session::CheckHello(Scheduler(), {}, "t", session::Peer{});
  REQUIRE(registration.ok());
  REQUIRE(registration->space.groups.size() == 1);
  // 16 pages x 4 layers x 2 segments x 1,024 bytes, and the header place of 4 KiB.
  CHECK(registration->space.groups[0].slot_bytes == std::vector<kvist::Bytes>(2, kvist::Bytes{16 * 4 * 2 * 1024 + 4096}));
}
