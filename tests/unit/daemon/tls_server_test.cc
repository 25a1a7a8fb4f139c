#include "daemon/rpc/tls_server.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/endpoint/credentials.h"
#include "daemon/endpoint/tls_files_in_force.h"
#include "daemon/rpc/admin_server.h"
#include "daemon/rpc/socket_address.h"
#include "daemon/rpc/tcp_door.h"
#include "proto/node.grpc.pb.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "tests/support/certificates.h"
#include "tests/support/free_port.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/daemon/fake_node.h"

namespace kvist::rpc {
namespace {

constexpr std::chrono::seconds kTime(20);

std::string OwnAddress(uint16_t port) { return absl::StrCat("127.0.0.1:", port); }

// A node behind TLS, with the certificates of all sorts of clients.
struct Served {
  test::CertificateAuthority ca, stranger;
  FakeNode node;
  const uint16_t port = test::FreePort();
  std::unique_ptr<TlsServer> server;

  Served() {
    ca.Sign("server", "DNS:localhost,IP:127.0.0.1");
    ca.Sign("router", "DNS:router.example");
    ca.Sign("prometheus", "");
    ca.Sign("nobody", "DNS:nobody.example,URI:spiffe://test/nobody");
    ca.Sign("old", "DNS:router.example", -1);
    stranger.Sign("router", "DNS:router.example");
    server = Serve();
  }
  endpoint::TlsFiles Files(const std::string& name) const {
    return {ca.file(name + ".crt"), ca.file(name + ".key"), ca.file("ca.crt")};
  }
  TlsServer::Options Options() {
    TlsServer::Options options;
    options.listen = OwnAddress(port);
    options.files = Files("server");
    options.roles = {{"dns:router.example", Role::kOperate}, {"cn:prometheus", Role::kRead}};
    options.node = &node;
    return options;
  }
  std::unique_ptr<TlsServer> Serve() {
    absl::StatusOr<std::unique_ptr<TlsServer>> created = TlsServer::Create(Options());
    INFO(created.status().ToString());
    REQUIRE(created.ok());
    return *std::move(created);
  }
};

class Client {
 public:
  Client(const Served& served, const endpoint::TlsFiles& files, const std::string& host = "127.0.0.1")
      : Client(endpoint::OpenTlsChannel({.host = host, .port = served.port}, files, Alone())) {}
  explicit Client(const std::shared_ptr<grpc::Channel>& channel) : stub_(node::v1::Node::NewStub(channel)) {}

  grpc::Status Status() const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTime);
    node::v1::StatusReply reply;
    return stub_->Status(&context, {}, &reply);
  }
  grpc::Status Clear() const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTime);
    node::v1::Job reply;
    return stub_->Clear(&context, {}, &reply);
  }

 private:
  // Not on a connection that another client of this process has.
  static grpc::ChannelArguments Alone() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
  }
  std::unique_ptr<node::v1::Node::Stub> stub_;
};

TEST_CASE("TlsServer lets each client do what its certificate's role says") {
  Served served;
  const Client router(served, served.Files("router"), "localhost");
  CHECK(router.Status().error_message() == "");
  CHECK(router.Clear().error_message() == "");
  CHECK(served.node.cleared().size() == 1);

  const Client prometheus(served, served.Files("prometheus"));
  CHECK(prometheus.Status().error_message() == "");
  const grpc::Status refused = prometheus.Clear();
  CHECK(refused.error_code() == grpc::PERMISSION_DENIED);
  CHECK_THAT(refused.error_message(), Catch::Contains("\"cn:prometheus\" = \"operate\""));

  const Client nobody(served, served.Files("nobody"));
  CHECK(nobody.Clear().error_code() == grpc::PERMISSION_DENIED);
  const grpc::Status denied = nobody.Status();
  CHECK(denied.error_code() == grpc::PERMISSION_DENIED);
  CHECK_THAT(denied.error_message(),
             Catch::StartsWith("\"dns:nobody.example\", \"uri:spiffe://test/nobody\", \"cn:nobody\" has no role") &&
                 Catch::Contains("[roles]"));
  CHECK(served.node.cleared().size() == 1);

  // On the connections that are there.
  served.server->SetRoles({{"uri:spiffe://test/nobody", Role::kRead}});
  CHECK(nobody.Status().error_message() == "");
  CHECK(router.Clear().error_code() == grpc::PERMISSION_DENIED);
  CHECK(router.Status().error_code() == grpc::PERMISSION_DENIED);
}

// Watches job 1.
class JobWatcher {
 public:
  JobWatcher(const Served& served, const std::string& who)
      : stub_(node::v1::Node::NewStub(
            endpoint::OpenTlsChannel({.host = "127.0.0.1", .port = served.port}, served.Files(who), {}))) {
    node::v1::WatchJobRequest request;
    request.set_id(1);
    context_.set_deadline(std::chrono::system_clock::now() + kTime);
    reader_ = stub_->WatchJob(&context_, request);
  }
  bool ReadsUntil(uint64_t done) {
    while (job_.done() != done) {
      if (!reader_->Read(&job_)) return false;
    }
    return true;
  }
  grpc::Status End() {
    while (reader_->Read(&job_)) continue;
    return reader_->Finish();
  }
  const node::v1::Job& job() const { return job_; }

 private:
  std::unique_ptr<node::v1::Node::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<node::v1::Job>> reader_;
  node::v1::Job job_;
};

// A connection of somebody who doesn't say who it is.
UniqueFd Silent(uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

TEST_CASE("TlsServer sends nobody away who has made a call, however many strangers come from the same address") {
  Served served;
  served.node.ClearsGoOn();
  REQUIRE(Client(served, served.Files("router")).Clear().ok());
  JobWatcher router(served, "router");
  REQUIRE(router.ReadsUntil(750));
  std::vector<UniqueFd> strangers;
  for (uint32_t i = 0; i < TcpDoor::Limits::OfThisProcess().strangers + 50; ++i) strangers.push_back(Silent(served.port));
  pollfd sent_away{strangers[0].get(), POLLIN, 0};
  CHECK(::poll(&sent_away, 1, 5000) == 1);  // before its handshake is late
  REQUIRE(served.node.CancelJob(1, MonotonicNow() + absl::Seconds(20)).ok());
  CHECK(router.End().error_message() == "");
}

TEST_CASE("TlsServer ends what a client watches whose role is taken away, and nobody else's") {
  Served served;
  served.node.ClearsGoOn();
  REQUIRE(Client(served, served.Files("router")).Clear().ok());
  JobWatcher prometheus(served, "prometheus"), router(served, "router");
  REQUIRE(prometheus.ReadsUntil(750));  // as far as it goes
  REQUIRE(router.ReadsUntil(750));
  served.server->SetRoles({{"dns:router.example", Role::kRead}});
  CHECK(prometheus.End().error_code() == grpc::PERMISSION_DENIED);
  CHECK(JobWatcher(served, "prometheus").End().error_code() == grpc::PERMISSION_DENIED);
  REQUIRE(served.node.CancelJob(1, MonotonicNow() + absl::Seconds(20)).ok());
  CHECK(router.End().error_message() == "");
  CHECK(router.job().state() == "cancelled");
}

TEST_CASE("TlsServer answers nobody whose certificate isn't its CA's, and valid") {
  Served served;
  const auto refused = [&](const Client& client) {
    const grpc::Status status = client.Clear();
    INFO(status.error_message());
    CHECK(status.error_code() == grpc::UNAVAILABLE);
  };
  refused(
      Client(served, {served.stranger.file("router.crt"), served.stranger.file("router.key"), served.ca.file("ca.crt")}));
  refused(Client(served, served.Files("old")));
  grpc::SslCredentialsOptions without;
  std::ifstream ca(served.ca.file("ca.crt"));
  without.pem_root_certs.assign(std::istreambuf_iterator<char>(ca), {});
  refused(Client(grpc::CreateChannel(OwnAddress(served.port), grpc::SslCredentials(without))));
  refused(Client(grpc::CreateChannel(OwnAddress(served.port), grpc::InsecureChannelCredentials())));
  CHECK(served.node.cleared().empty());
  CHECK(Client(served, served.Files("router")).Clear().error_message() == "");
}

TEST_CASE("OpenTlsChannel speaks with the host that was asked for, and with nobody else") {
  Served served;
  served.ca.Sign("elsewhere", "DNS:elsewhere.example");
  TlsServer::Options options = served.Options();
  const uint16_t port = test::FreePort();
  options.listen = OwnAddress(port);
  options.files = served.Files("elsewhere");
  const auto elsewhere = TlsServer::Create(std::move(options));
  REQUIRE(elsewhere.ok());
  const auto ask = [&](const endpoint::TlsFiles& files, uint16_t of) {
    return Client(endpoint::OpenTlsChannel({.host = "127.0.0.1", .port = of}, files, {})).Status().error_code();
  };
  CHECK(ask(served.Files("router"), served.port) == grpc::OK);
  CHECK(ask(served.Files("router"), port) == grpc::UNAVAILABLE);
  endpoint::TlsFiles other_ca = served.Files("router");
  other_ca.ca = served.stranger.file("ca.crt");
  CHECK(ask(other_ca, served.port) == grpc::UNAVAILABLE);
}

TEST_CASE("TlsServer takes new certificates over while it runs") {
  Served served;
  const test::CertificateAuthority next;
  next.Sign("server", "IP:127.0.0.1");
  next.Sign("router", "DNS:router.example");
  const endpoint::TlsFiles of_next{next.file("router.crt"), next.file("router.key"), next.file("ca.crt")};
  CHECK_FALSE(Client(served, of_next).Status().ok());
  for (const std::string name : {"server.key", "server.crt", "ca.crt"})
    std::filesystem::copy_file(next.file(name), served.ca.file(name), std::filesystem::copy_options::overwrite_existing);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  bool taken = false;
  while (!taken && std::chrono::steady_clock::now() < deadline) taken = Client(served, of_next).Status().ok();
  CHECK(taken);
}

TEST_CASE("TlsServer goes on with the files before while others don't fit, when it is given those in force") {
  Served served;
  const auto in_force = endpoint::TlsFilesInForce::Create(
      {.files = served.Files("server"), .say = [](bool, const std::string&) {}, .look_every = absl::Milliseconds(1)});
  REQUIRE(in_force.ok());
  served.server.reset();
  TlsServer::Options options = served.Options();
  options.files = (*in_force)->paths();
  auto created = TlsServer::Create(std::move(options));
  REQUIRE(created.ok());
  served.server = *std::move(created);
  const test::CertificateAuthority next;
  next.Sign("server", "IP:127.0.0.1");
  next.Sign("router", "DNS:router.example");
  const endpoint::TlsFiles of_next{next.file("router.crt"), next.file("router.key"), next.file("ca.crt")};
  const auto put = [&](const std::string& name) {
    std::filesystem::copy_file(next.file(name), served.ca.file(name), std::filesystem::copy_options::overwrite_existing);
  };
  // As long as gRPC takes to look at its files twice.
  const endpoint::TlsFiles router{served.ca.file("router.crt"), served.ca.file("router.key"), served.ca.file("before.crt")};
  std::filesystem::copy_file(served.ca.file("ca.crt"), router.ca);
  put("server.crt");
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
  while (std::chrono::steady_clock::now() < until) REQUIRE(Client(served, router).Status().error_message() == "");
  CHECK_THAT(std::string((*in_force)->trouble().message()), Catch::Contains("isn't the key of the certificate"));
  put("server.key");
  put("ca.crt");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  bool taken = false;
  while (!taken && std::chrono::steady_clock::now() < deadline) taken = Client(served, of_next).Status().ok();
  CHECK(taken);
  served.server.reset();  // before its files
}

TEST_CASE("TlsServer says why it can't serve") {
  Served served;
  const absl::Status taken = TlsServer::Create(served.Options()).status();
  CHECK(absl::IsUnavailable(taken));
  CHECK_THAT(std::string(taken.message()), Catch::StartsWith("admin.listen: can't listen at 127.0.0.1:"));
  TlsServer::Options open = served.Options();
  std::filesystem::permissions(open.files.key, std::filesystem::perms(0644));
  CHECK_THAT(std::string(TlsServer::Create(std::move(open)).status().message()), Catch::Contains("chmod o-rwx"));
}

TEST_CASE("TlsServer and the socket beside it answer while 200 clients never say who they are, and it sends those away") {
  Served served;
  const test::TempDir dir;
  const auto admin = AdminServer::Create({.socket = dir / "admin.sock", .mode = 0660, .group = "", .node = &served.node});
  REQUIRE(admin.ok());
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(Silent(served.port));
    const char hello[] = {0x16, 0x03};  // the beginning of a handshake, for every second
    if (i % 2 == 0) REQUIRE(::send(silent.back().get(), hello, sizeof hello, MSG_NOSIGNAL) == 2);
  }
  const Client local(grpc::CreateChannel(SocketAddress(dir / "admin.sock"), grpc::InsecureChannelCredentials()));
  const Client router(served, served.Files("router"));
  for (int i = 0; i < 20; ++i) {
    CHECK(local.Clear().error_message() == "");
    CHECK(router.Clear().error_message() == "");
  }
  for (const UniqueFd& one : silent) {
    pollfd ended{one.get(), POLLIN, 0};
    REQUIRE(::poll(&ended, 1, 30'000) == 1);
    char byte;
    CHECK(::recv(one.get(), &byte, 1, 0) <= 0);
  }
}

}  // namespace
}  // namespace kvist::rpc
