#include "daemon/rpc/admin_server.h"

#include <fcntl.h>
#include <grp.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/ctl/node_client.h"
#include "daemon/rpc/socket_address.h"
#include "proto/node.grpc.pb.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/daemon/fake_node.h"

namespace kvist::rpc {
namespace {

constexpr absl::Duration kTime = absl::Seconds(20);

std::unique_ptr<AdminServer> Serve(const std::string& socket, NodeControl* node) {
  absl::StatusOr<std::unique_ptr<AdminServer>> server =
      AdminServer::Create({.socket = socket, .mode = 0660, .group = "", .node = node});
  INFO(server.status().ToString());
  REQUIRE(server.ok());
  return *std::move(server);
}

absl::Status Refusal(AdminServer::Options options) { return AdminServer::Create(std::move(options)).status(); }

ctl::NodeClient Client(const std::string& socket) {
  absl::StatusOr<ctl::NodeClient> client = ctl::NodeClient::Connect(socket);
  INFO(client.status().ToString());
  REQUIRE(client.ok());
  return *std::move(client);
}

node::v1::ClearRequest Clear(const std::string& space, const std::string& request) {
  node::v1::ClearRequest clear;
  clear.set_space(space);
  clear.set_request(request);
  return clear;
}

// A socket of a process that has died: bound, and nobody behind it. Or, when `fd` is kept, one with somebody.
UniqueFd Bound(const std::string& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  REQUIRE(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(fd.get(), 1) == 0);
  return fd;
}

struct stat StatOf(const std::string& path) {
  struct stat found {};
  REQUIRE(stat(path.c_str(), &found) == 0);
  return found;
}

TEST_CASE("AdminServer answers with what the node says") {
  const test::TempDir dir;
  FakeNode node;
  const auto server = Serve(dir / "admin.sock", &node);
  ctl::NodeClient client = Client(dir / "admin.sock");

  const auto status = client.Status(kTime);
  INFO(status.status().ToString());
  REQUIRE(status.ok());
  CHECK(status->version() == KVIST_VERSION);
  CHECK(status->pid() == static_cast<uint64_t>(getpid()));
  CHECK(status->uptime_seconds() == 3725.5);
  CHECK(status->pool().capacity_bytes() == GiB(4).value);
  CHECK(status->pool().locked());
  CHECK(status->pool().slots() == 12345);
  REQUIRE(status->spaces_size() == 2);
  CHECK(status->spaces(0).digest() == "aaaa111111111111");
  CHECK(status->spaces(0).chunks() == 9'007'199'254'740'993);
  CHECK(status->spaces(1).model() == "evil\\x1b[2J\\xff");  // not UTF-8, so escaped
  CHECK(status->chunks_hit() == 250);

  const auto sessions = client.Sessions(kTime);
  REQUIRE(sessions.ok());
  REQUIRE(sessions->sessions_size() == 1);
  CHECK(sessions->sessions(0).instance() == "engine");
  CHECK(sessions->sessions(0).age_seconds() == 90);
  CHECK(sessions->sessions(0).space() == "aaaa111111111111");
}

TEST_CASE("AdminServer inflates nothing: a compressed message is refused, however large it would be") {
  const test::TempDir dir;
  FakeNode node;
  const auto server = Serve(dir / "admin.sock", &node);
  const auto channel = grpc::CreateChannel("unix:" + (dir / "admin.sock"), grpc::InsecureChannelCredentials());
  const auto stub = node::v1::Node::NewStub(channel);
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    node::v1::ClearRequest request;
    request.set_space(std::string(64 << 20, 'a'));  // 64 KiB when compressed, less than a message may have
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    node::v1::Job job;
    const grpc::Status status = stub->Clear(&context, request, &job);
    INFO(status.error_code() << " " << status.error_message());
    CHECK(status.error_code() == grpc::StatusCode::UNIMPLEMENTED);
  }
  CHECK(Client(dir / "admin.sock").Status(kTime).ok());
}

TEST_CASE("AdminServer clears everything, or the space that a prefix names") {
  const test::TempDir dir;
  FakeNode node;
  const auto server = Serve(dir / "admin.sock", &node);
  ctl::NodeClient client = Client(dir / "admin.sock");
  CHECK(client.Clear(Clear("", ""), kTime)->chunks() == 17);
  CHECK(client.Clear(Clear("AAAA", "again"), kTime)->request() == "again");
  CHECK(node.cleared() == std::vector<std::string>{"", FakeNode::kSpaceA});

  const absl::Status several = client.Clear(Clear("aa", ""), kTime).status();
  CHECK(several.code() == absl::StatusCode::kInvalidArgument);
  CHECK(absl::StrContains(several.message(), "aabb222222222222"));
  CHECK(client.Clear(Clear("bb", ""), kTime).status().code() == absl::StatusCode::kNotFound);
  CHECK(client.Clear(Clear("*", ""), kTime).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(client.Clear(Clear("", std::string(65, 'x')), kTime).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(node.cleared().size() == 2);
}

TEST_CASE("AdminServer hands the node's errors and words on") {
  const test::TempDir dir;
  FakeNode node;
  const auto server = Serve(dir / "admin.sock", &node);
  ctl::NodeClient client = Client(dir / "admin.sock");
  for (const auto code : {absl::StatusCode::kUnavailable, absl::StatusCode::kNotFound, absl::StatusCode::kDataLoss,
                          absl::StatusCode::kAborted}) {
    node.Fail(absl::Status(code, "what to do"));
    CHECK(client.Status(kTime).status() == absl::Status(code, "what to do"));
    CHECK(client.Sessions(kTime).status().code() == code);
    CHECK(client.Clear(Clear("", ""), kTime).status().code() == code);
  }
}

TEST_CASE("AdminServer gives the node the client's time, or a default") {
  const test::TempDir dir;
  FakeNode node;
  const auto server = Serve(dir / "admin.sock", &node);
  ctl::NodeClient client = Client(dir / "admin.sock");
  REQUIRE(client.Status(absl::Seconds(100)).ok());
  CHECK(node.given() > absl::Seconds(50));
  CHECK(node.given() <= absl::Seconds(101));  // gRPC rounds up on its way
  REQUIRE(client.Status(absl::Hours(24)).ok());
  CHECK(node.given() <= absl::Minutes(10));

  const auto stub =
      node::v1::Node::NewStub(grpc::CreateChannel(SocketAddress(dir / "admin.sock"), grpc::InsecureChannelCredentials()));
  grpc::ClientContext status_context, clear_context;
  node::v1::StatusReply status;
  node::v1::Job clear;
  REQUIRE(stub->Status(&status_context, {}, &status).ok());
  CHECK(node.given() <= absl::Seconds(5));
  REQUIRE(stub->Clear(&clear_context, {}, &clear).ok());
  CHECK(node.given() <= absl::Seconds(5));
}

TEST_CASE("AdminServer streams a job's progress until it ends, to a bounded number of watchers") {
  const test::TempDir dir;
  FakeNode node;
  node.ClearsGoOn();
  auto server = Serve(dir / "admin.sock", &node);
  ctl::NodeClient client = Client(dir / "admin.sock");
  const uint64_t job = client.Clear(Clear("", ""), kTime)->id();
  std::vector<uint64_t> seen;
  const auto ended = client.WatchJob(job, kTime, [&](const node::v1::Job* now) {
    if (now != nullptr) seen.push_back(now->done());
    if (seen.size() == 3) CHECK(Client(dir / "admin.sock").CancelJob(job, kTime)->state() == "cancelled");
    return true;
  });
  REQUIRE(ended.ok());
  CHECK(ended->state() == "cancelled");
  REQUIRE(seen.size() >= 3);
  CHECK(std::vector<uint64_t>(seen.begin(), seen.begin() + 3) == std::vector<uint64_t>{250, 500, 750});
  CHECK(client.WatchJob(99, kTime, [](const node::v1::Job*) { return true; }).status().code() ==
        absl::StatusCode::kNotFound);

  const uint64_t endless = client.Clear(Clear("", ""), kTime)->id();
  CHECK(client.WatchJob(endless, absl::Milliseconds(100), [](const node::v1::Job*) { return true; }).status().code() ==
        absl::StatusCode::kDeadlineExceeded);
  CHECK(client.WatchJob(endless, kTime, [](const node::v1::Job*) { return false; }).status().code() ==
        absl::StatusCode::kCancelled);

  // Eight more watch; the next is sent away, and others are answered all the same.
  constexpr size_t kWatchers = 8;
  const absl::Time late = MonotonicNow() + kTime;
  std::vector<ctl::NodeClient> clients;
  for (size_t i = 0; i < kWatchers; ++i) clients.push_back(Client(dir / "admin.sock"));
  std::vector<absl::Status> ends(kWatchers);
  std::atomic<size_t> watching{0};
  std::vector<std::thread> watchers;
  for (size_t i = 0; i < kWatchers; ++i) {
    watchers.emplace_back([&, i] {
      bool first = true;
      do {  // one of those before may not have left yet
        ends[i] = clients[i]
                      .WatchJob(endless, kTime,
                                [&](const node::v1::Job* now) {
                                  if (now != nullptr && std::exchange(first, false)) ++watching;
                                  return true;
                                })
                      .status();
      } while (absl::IsResourceExhausted(ends[i]) && MonotonicNow() < late);
    });
  }
  while (watching < kWatchers && MonotonicNow() < late) std::this_thread::yield();
  CHECK(watching == kWatchers);
  CHECK(client.WatchJob(endless, kTime, [](const node::v1::Job*) { return true; }).status().code() ==
        absl::StatusCode::kResourceExhausted);
  CHECK(client.Status(kTime).ok());
  server.reset();
  for (std::thread& watcher : watchers) watcher.join();
  for (const absl::Status& end : ends) CHECK((absl::IsUnavailable(end) || absl::IsCancelled(end)));
}

TEST_CASE("AdminServer leaves no call without an end") {
  const test::TempDir dir;
  FakeNode node;
  auto server = Serve(dir / "admin.sock", &node);
  ctl::NodeClient client = Client(dir / "admin.sock");
  node.Hang();
  CHECK(client.Status(absl::Milliseconds(50)).status().code() == absl::StatusCode::kDeadlineExceeded);

  absl::Status status;
  std::thread caller([&] { status = client.Clear(Clear("", ""), absl::Minutes(5)).status(); });
  node.WaitForAClear();
  node.Stop();  // as a daemon does when it stops
  server.reset();
  caller.join();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("AdminServer makes its socket with the given mode and group, and removes it") {
  const test::TempDir dir;
  FakeNode node;
  {
    const auto server = AdminServer::Create({.socket = dir / "admin.sock", .mode = 0640, .group = "", .node = &node});
    REQUIRE(server.ok());
    CHECK((StatOf(dir / "admin.sock").st_mode & 07777) == 0640);
  }
  CHECK_FALSE(std::filesystem::exists(dir / "admin.sock"));
  const group* some_group = getgrnam("daemon");
  if (geteuid() != 0 || some_group == nullptr) {
    WARN("group skipped: not root");
    return;
  }
  const auto server = AdminServer::Create({.socket = dir / "admin.sock", .mode = 0660, .group = "daemon", .node = &node});
  REQUIRE(server.ok());
  CHECK(StatOf(dir / "admin.sock").st_gid == some_group->gr_gid);
  CHECK((StatOf(dir / "admin.sock").st_mode & 07777) == 0660);
}

TEST_CASE("AdminServer leaves nothing behind when its group is unknown") {
  const test::TempDir dir;
  FakeNode node;
  const absl::Status status = Refusal({.socket = dir / "admin.sock", .mode = 0660, .group = "no-such-group", .node = &node});
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(absl::StrContains(status.message(), "admin.socket_group"));
  CHECK_FALSE(std::filesystem::exists(dir / "admin.sock"));
}

TEST_CASE("AdminServer replaces the socket of a dead daemon, and leaves that of a live one alone") {
  const test::TempDir dir;
  FakeNode node;
  Bound(dir / "stale.sock", SOCK_STREAM);
  REQUIRE(std::filesystem::exists(dir / "stale.sock"));
  const auto first = Serve(dir / "stale.sock", &node);

  const absl::Status second = Refusal({.socket = dir / "stale.sock", .mode = 0660, .group = "", .node = &node});
  CHECK(second.code() == absl::StatusCode::kAlreadyExists);
  CHECK(Client(dir / "stale.sock").Status(kTime).ok());

  const UniqueFd other = Bound(dir / "engine.sock", SOCK_SEQPACKET);
  CHECK(Refusal({.socket = dir / "engine.sock", .mode = 0660, .group = "", .node = &node}).code() ==
        absl::StatusCode::kAlreadyExists);
  std::ofstream(dir / "file") << "precious";
  CHECK(Refusal({.socket = dir / "file", .mode = 0660, .group = "", .node = &node}).code() ==
        absl::StatusCode::kAlreadyExists);
  CHECK(std::filesystem::file_size(dir / "file") == 8);
}

TEST_CASE("AdminServer says why it can't have a socket") {
  FakeNode node;
  const test::TempDir dir;
  const absl::Status missing = Refusal({.socket = dir / "none/admin.sock", .mode = 0660, .group = "", .node = &node});
  CHECK(missing.code() == absl::StatusCode::kNotFound);
  CHECK(absl::StrContains(missing.message(), "admin.socket"));
  CHECK(Refusal({.socket = dir / std::string(120, 'x'), .mode = 0660, .group = "", .node = &node}).code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("AdminServer serves at a path that is no URI") {
  const test::TempDir dir;
  FakeNode node;
  const std::string path = dir / "a b%20#?\xc3\xa5.sock";
  const auto server = Serve(path, &node);
  CHECK(std::filesystem::exists(path));
  CHECK(Client(path).Status(kTime).ok());
}

TEST_CASE("AdminServer survives what isn't gRPC") {
  const test::TempDir dir;
  FakeNode node;
  const auto server = Serve(dir / "admin.sock", &node);
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir / "admin.sock";
  std::memcpy(address.sun_path, path.data(), path.size());
  REQUIRE(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const std::string noise(100'000, '\xa5');
  send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
  CHECK(Client(path).Status(kTime).ok());
}

}  // namespace
}  // namespace kvist::rpc
