// Operators over TCP: real kvistds and a kvist-controller, and clients with certificates of all sorts.
#include <arpa/inet.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/endpoint/credentials.h"
#include "daemon/endpoint/tls_files.h"
#include "proto/controller.grpc.pb.h"
#include "proto/node.grpc.pb.h"
#include "storage/base/unique_fd.h"
#include "tests/support/bystander.h"
#include "tests/support/certificates.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/free_port.h"
#include "tests/support/http_get.h"
#include "tests/support/stderr_to.h"
#include "tests/support/temp_dir.h"

namespace api = kvist::controller::v1;
namespace node_api = kvist::node::v1;
using kvist::UniqueFd;
using kvist::endpoint::TlsFiles;
using kvist::test::BinDir;
using kvist::test::Bystander;
using kvist::test::CertificateAuthority;
using kvist::test::ChildProcess;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FreePort;
using kvist::test::KvistdCommand;
using kvist::test::RunProgram;
using kvist::test::StatusOf;
using kvist::test::StderrTo;
using kvist::test::TempDir;

namespace {

std::string OwnAddress(uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

struct Certificates {
  CertificateAuthority ca, stranger;
  Certificates() {
    ca.Sign("node", "IP:127.0.0.1");
    ca.Sign("controller", "DNS:controller.example,IP:127.0.0.1");
    ca.Sign("router", "DNS:router.example");
    ca.Sign("prometheus", "");
    ca.Sign("nobody", "");
    ca.Sign("old", "DNS:router.example", -1);
    stranger.Sign("router", "DNS:router.example");
  }
  TlsFiles Of(const std::string& name) const { return {ca.file(name + ".crt"), ca.file(name + ".key"), ca.file("ca.crt")}; }
  // What a kvistd has to be told.
  std::vector<std::string> Settings(uint16_t port) const {
    return {"admin.listen=" + OwnAddress(port),
            "tls.certificate_file=" + ca.file("node.crt"),
            "tls.key_file=" + ca.file("node.key"),
            "tls.ca_file=" + ca.file("ca.crt"),
            "pool.bytes=8MiB",
            "ssd.enabled=false",
            "pool.touch_threads=0"};
  }
};

constexpr char kRoles[] =
    "[roles]\n\"cn:prometheus\" = \"read\"\n\"dns:router.example\" = \"operate\"\n\"dns:controller.example\" = "
    "\"operate\"\n";

std::string FileOf(const TempDir& dir, const std::string& text) {
  const std::string file = dir / "roles.toml";
  std::ofstream(file) << text;
  return file;
}

std::shared_ptr<grpc::Channel> ByTls(uint16_t port, const TlsFiles& files) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return kvist::endpoint::OpenTlsChannel({.host = "127.0.0.1", .port = port}, files, arguments);
}

// How a call of either service ends.
template <class Stub, class Request, class Reply>
grpc::Status Ask(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                 const Request& request, Reply* reply) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  return (stub.*method)(&context, request, reply);
}

grpc::Status Status(const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = node_api::Node::NewStub(channel);
  node_api::StatusReply reply;
  return Ask(*stub, &node_api::Node::Stub::Status, {}, &reply);
}

grpc::Status Clear(const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = node_api::Node::NewStub(channel);
  node_api::Job reply;
  return Ask(*stub, &node_api::Node::Stub::Clear, {}, &reply);
}

grpc::Status ClearAsController(const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = api::Controller::NewStub(channel);
  api::ClearRequest request;
  request.set_everything(true);
  api::JobsReply reply;
  return Ask(*stub, &api::Controller::Stub::Clear, request, &reply);
}

std::pair<grpc::Status, api::HealthReply> Health(const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = api::Controller::NewStub(channel);
  std::pair<grpc::Status, api::HealthReply> answer;
  answer.first = Ask(*stub, &api::Controller::Stub::Health, {}, &answer.second);
  return answer;
}

// kvistd or kvist-controller that is expected to end by itself: its status, and all that it says.
std::pair<int, std::string> Said(std::vector<std::string> command) {
  command.insert(command.begin(), {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1"});
  std::string said;
  const int status = RunProgram(command, &said);
  return {status, said};
}

ChildProcess StartController(const std::string& file, rlim_t descriptors = RLIM_INFINITY) {
  return ChildProcess([file, descriptors] {
    const std::string program = BinDir() + "/kvist-controller";
    if (freopen("/dev/null", "w", stdout) == nullptr) return 98;  // READY
    const rlimit limit{descriptors, descriptors};
    if (descriptors != RLIM_INFINITY && setrlimit(RLIMIT_NOFILE, &limit) != 0) return 96;
    execl(program.c_str(), program.c_str(), "--config", file.c_str(), nullptr);
    return 97;
  });
}

}  // namespace

TEST_CASE("HasRunOut is about a certificate's time, and what is none has none") {
  const Certificates certificates;
  const auto text = [&](const std::string& name) {
    std::ifstream file(certificates.ca.file(name + ".crt"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  CHECK_FALSE(kvist::endpoint::HasRunOut(text("router")));
  CHECK(kvist::endpoint::HasRunOut(text("old")));
  CHECK(kvist::endpoint::HasRunOut(""));
  CHECK(kvist::endpoint::HasRunOut("-----BEGIN CERTIFICATE-----"));
}

TEST_CASE("Over TCP a client does what its certificate's role says, and without one nothing") {
  const Certificates certificates;
  const TempDir dir;
  const uint16_t port = FreePort();
  const std::string log = dir / "log";
  std::optional<StderrTo> to_log(log);
  std::vector<std::string> settings = certificates.Settings(port);
  settings.push_back("log.level=info");
  DaemonProcess daemon(dir.path(), settings, FileOf(dir, kRoles));
  to_log.reset();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.StoreAll(engine.Keys(1000, 6)).status == KVIST_OK);

  const auto refused = [&](const std::shared_ptr<grpc::Channel>& channel, grpc::StatusCode code) {
    for (const grpc::Status& status : {Status(channel), Clear(channel), ClearAsController(channel), Health(channel).first}) {
      INFO(status.error_message());
      CHECK(status.error_code() == code);
    }
  };
  refused(grpc::CreateChannel(OwnAddress(port), grpc::InsecureChannelCredentials()), grpc::UNAVAILABLE);
  grpc::SslCredentialsOptions without;
  std::ifstream ca(certificates.ca.file("ca.crt"));
  without.pem_root_certs.assign(std::istreambuf_iterator<char>(ca), {});
  refused(grpc::CreateChannel(OwnAddress(port), grpc::SslCredentials(without)), grpc::UNAVAILABLE);
  const CertificateAuthority& stranger = certificates.stranger;
  refused(ByTls(port, {stranger.file("router.crt"), stranger.file("router.key"), certificates.ca.file("ca.crt")}),
          grpc::UNAVAILABLE);
  refused(ByTls(port, certificates.Of("old")), grpc::UNAVAILABLE);
  const auto nobody = ByTls(port, certificates.Of("nobody"));
  refused(nobody, grpc::PERMISSION_DENIED);
  CHECK_THAT(Status(nobody).error_message(), Catch::Contains("\"cn:nobody\" = \"read\"") && Catch::Contains("[roles]"));

  const auto prometheus = ByTls(port, certificates.Of("prometheus"));
  CHECK(Status(prometheus).error_message() == "");
  CHECK(Health(prometheus).first.error_message() == "");
  for (const grpc::Status& status : {Clear(prometheus), ClearAsController(prometheus)}) {
    CHECK(status.error_code() == grpc::PERMISSION_DENIED);
    CHECK_THAT(status.error_message(), Catch::Contains("\"cn:prometheus\" = \"operate\""));
  }
  CHECK(StatusOf(daemon)["spaces"][0]["chunks"] == 6);  // nobody has cleared anything

  const auto router = ByTls(port, certificates.Of("router"));
  CHECK(Status(router).error_message() == "");
  CHECK(Clear(router).error_message() == "");
  CHECK(Eventually([&] { return StatusOf(daemon)["spaces"][0]["chunks"] == 0; }));
  CHECK(ClearAsController(router).error_message() == "");
  CHECK(daemon.Terminate() == 0);
  std::ifstream lines(log);
  const std::string said{std::istreambuf_iterator<char>(lines), {}};
  CHECK_THAT(said, Catch::Contains("\"dns:router.example\", \"cn:router\" calls /kvist.node.v1.Node/Clear") &&
                       Catch::Contains(" calls /kvist.controller.v1.Controller/Clear") &&
                       !Catch::Contains("prometheus\" calls"));
}

TEST_CASE("A reload gives and takes roles") {
  const Certificates certificates;
  const TempDir dir;
  const uint16_t port = FreePort();
  const std::string file = FileOf(dir, kRoles);
  const DaemonProcess daemon(dir.path(), certificates.Settings(port), file);
  const auto prometheus = ByTls(port, certificates.Of("prometheus")), nobody = ByTls(port, certificates.Of("nobody"));
  CHECK(Status(prometheus).ok());
  CHECK(Status(nobody).error_code() == grpc::PERMISSION_DENIED);
  const auto feed = node_api::Feed::NewStub(prometheus);
  grpc::ClientContext watches;
  watches.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const auto chunks = feed->WatchChunks(&watches, {});
  chunks->WaitForInitialMetadata();
  std::ofstream(file) << "[roles]\n\"cn:nobody\" = \"read\"\n";
  CHECK(kvist::test::Ctl(daemon, {"reload"})["in_force"].size() == 4);
  node_api::ChunkNews told;
  while (chunks->Read(&told)) continue;
  CHECK(chunks->Finish().error_code() == grpc::PERMISSION_DENIED);
  CHECK(Status(prometheus).error_code() == grpc::PERMISSION_DENIED);
  CHECK(Status(nobody).ok());
}

TEST_CASE("A renewal of certificates that goes wrong costs kvistd and kvist-controller a warning, and no connection") {
  const Certificates certificates;
  const CertificateAuthority& ca = certificates.ca;
  const TempDir dir;
  const uint16_t port_node = FreePort(), port = FreePort(), port_http = FreePort();
  const std::string log = dir / "log", file = dir / "c.toml";
  std::optional<StderrTo> to_log(log);
  std::vector<std::string> settings = certificates.Settings(port_node);
  settings.insert(settings.end(), {"log.level=info", "metrics.listen=" + OwnAddress(port_http)});
  const DaemonProcess daemon(dir.path(), settings, FileOf(dir, kRoles));
  std::ofstream(file) << "[controller]\nsocket = \"" << dir / "c.sock"
                      << "\"\nlisten = \"" << OwnAddress(port) << "\"\n[tls]\ncertificate_file = \""
                      << ca.file("controller.crt") << "\"\nkey_file = \"" << ca.file("controller.key") << "\"\nca_file = \""
                      << ca.file("ca.crt") << "\"\n"
                      << kRoles << "[nodes]\na = \"tls:" << OwnAddress(port_node) << "\"\n";
  const ChildProcess controller = StartController(file);
  to_log.reset();
  REQUIRE(Eventually([&] { return Health(ByTls(port, certificates.Of("router"))).first.ok(); }));
  const auto said = [&] {
    std::ifstream lines(log);
    return std::string{std::istreambuf_iterator<char>(lines), {}};
  };
  const auto says = [&](const std::string& line) {
    return Eventually([&] { return said().find(line) != std::string::npos; });
  };
  for (const std::string whose : {"node", "controller"}) {
    ca.Run("cp " + ca.file(whose + ".key") + " " + ca.file(whose + ".kept"));
    ca.Run("cp " + ca.file("nobody.key") + " " + ca.file(whose + ".key"));
  }
  for (const std::string whose : {"node", "controller"})
    CHECK(says("tls.key_file: " + ca.file(whose + ".key") + " isn't the key of the certificate in " +
               ca.file(whose + ".crt")));
  CHECK(Status(ByTls(port_node, certificates.Of("router"))).error_message() == "");
  const auto [health, nodes] = Health(ByTls(port, certificates.Of("router")));
  CHECK(health.error_message() == "");
  REQUIRE(nodes.nodes_size() == 1);
  CHECK(nodes.nodes(0).code() == grpc::OK);
  CHECK_THAT(kvist::test::HttpGet(port_http, "/readyz?verbose"), Catch::Contains("[!] TLS files: tls.key_file: "));
  for (const std::string whose : {"node", "controller"})
    ca.Run("cp " + ca.file(whose + ".kept") + " " + ca.file(whose + ".key"));
  CHECK(says("tls.certificate_file, tls.key_file, tls.ca_file: well again"));
}

TEST_CASE("kvistd doesn't start where strangers could operate it") {
  const Certificates certificates;
  const TempDir dir;
  for (const std::string address : {"0.0.0.0:9416", "10.0.0.7:9416", "[::]:9416", "127.0.0.1:9416"}) {
    const auto [status, said] = Said({BinDir() + "/kvistd", "--set", "admin.listen=" + address, "config", "check"});
    CHECK(status == 2);
    CHECK_THAT(said, Catch::Contains("admin.listen: \"" + address) && Catch::Contains("tls.certificate_file") &&
                         Catch::Contains("tls.key_file") && Catch::Contains("tls.ca_file"));
  }
  const std::vector<std::string> command = KvistdCommand(dir.path(), certificates.Settings(FreePort()));
  REQUIRE(::chmod(certificates.ca.file("node.key").c_str(), 0644) == 0);
  const auto [status, said] = Said(command);
  CHECK(status == 2);
  CHECK_THAT(said, Catch::Contains("tls.key_file: ") && Catch::Contains("other users may read") &&
                       Catch::Contains("chmod o-rwx " + certificates.ca.file("node.key")));
}

TEST_CASE("kvist-controller is reached over TCP, and reaches its nodes over TCP, with certificates on all sides") {
  const Certificates certificates;
  const TempDir dir;
  const std::string a_dir = dir / "a", b_dir = dir / "b";
  REQUIRE((::mkdir(a_dir.c_str(), 0755) == 0 && ::mkdir(b_dir.c_str(), 0755) == 0));
  const uint16_t port_a = FreePort(), port_b = FreePort(), port = FreePort();
  DaemonProcess a(a_dir, certificates.Settings(port_a), FileOf(dir, kRoles));
  // The second has no role for the controller.
  DaemonProcess b(b_dir, certificates.Settings(port_b));
  const auto config = [&](const std::string& name, const std::string& host) {
    const std::string file = dir / name;
    const CertificateAuthority& ca = certificates.ca;
    std::ofstream(file) << "[controller]\nsocket = \"" << dir / (name + ".sock") << "\"\nlisten = \"" << OwnAddress(port)
                        << "\"\n[tls]\ncertificate_file = \"" << ca.file("controller.crt") << "\"\nkey_file = \""
                        << ca.file("controller.key") << "\"\nca_file = \"" << ca.file("ca.crt") << "\"\n"
                        << kRoles << "[nodes]\nnode-a = \"tls:" << host << ":" << port_a
                        << "\"\nnode-b = \"tls:127.0.0.1:" << port_b << "\"\nnode-c = \"unix:" << b.admin_socket() << "\"\n";
    return file;
  };
  ChildProcess controller = StartController(config("c", "127.0.0.1"));
  const auto prometheus = ByTls(port, certificates.Of("prometheus")), router = ByTls(port, certificates.Of("router"));
  REQUIRE(Eventually([&] { return Health(prometheus).first.ok(); }));
  const api::HealthReply health = Health(prometheus).second;
  REQUIRE(health.nodes_size() == 3);
  CHECK(health.nodes(0).code() == grpc::OK);
  CHECK(health.nodes(1).code() == grpc::PERMISSION_DENIED);
  CHECK_THAT(health.nodes(1).message(), Catch::Contains("\"dns:controller.example\" = \"read\""));
  CHECK(health.nodes(2).code() == grpc::OK);

  CHECK(ClearAsController(prometheus).error_code() == grpc::PERMISSION_DENIED);
  CHECK(ClearAsController(ByTls(port, certificates.Of("nobody"))).error_code() == grpc::PERMISSION_DENIED);
  CHECK(Health(ByTls(port, certificates.Of("nobody"))).first.error_code() == grpc::PERMISSION_DENIED);
  CHECK(Health(ByTls(port, certificates.Of("old"))).first.error_code() == grpc::UNAVAILABLE);
  CHECK(ClearAsController(router).error_message() == "");
  CHECK(StatusOf(a)["pid"] == a.pid());

  const TlsFiles files = certificates.Of("router");
  CHECK_THAT(Said({BinDir() + "/kvistctl", "--controller", "tls:" + OwnAddress(port), "--tls-certificate", files.certificate,
                   "--tls-key", files.key, "--tls-ca", files.ca, "clear", "--yes", "--node", "node-a"})
                 .second,
             Catch::Contains("node-a: cleared 0 chunks"));

  // A node that was away is found again soon.
  a.Kill();
  CHECK(Health(router).second.nodes(0).code() == grpc::UNAVAILABLE);
  a.Start();
  CHECK(Eventually([&] { return Health(router).second.nodes(0).code() == grpc::OK; }));

  // A node's certificate has to be of the host that was named: localhost isn't in it.
  controller.Signal(SIGTERM);
  CHECK(controller.Wait() == 0);
  const ChildProcess other = StartController(config("d", "localhost"));
  REQUIRE(Eventually([&] { return Health(router).first.ok(); }));
  CHECK(Health(router).second.nodes(0).code() == grpc::UNAVAILABLE);

  const auto [status, said] = Said({BinDir() + "/kvist-controller", "--node", "b=tls:127.0.0.1:" + std::to_string(port_b)});
  CHECK(status == 2);
  CHECK_THAT(said, Catch::Contains("nodes.b: tls:127.0.0.1:") && Catch::Contains("tls.key_file"));
}

TEST_CASE("kvistctl reaches a kvistd elsewhere by TLS, by files that options or the environment name") {
  const Certificates certificates;
  const TempDir dir;
  const uint16_t port = FreePort();
  const DaemonProcess daemon(dir.path(), certificates.Settings(port), FileOf(dir, kRoles));
  const std::string address = "tls:" + OwnAddress(port);
  const auto ctl = [&](const std::string& who, std::vector<std::string> arguments) {
    const TlsFiles files = certificates.Of(who);
    arguments.insert(arguments.begin(), {BinDir() + "/kvistctl", "--address", address, "--tls-certificate",
                                         files.certificate, "--tls-key", files.key, "--tls-ca", files.ca});
    return Said(arguments);
  };
  CHECK(nlohmann::json::parse(ctl("prometheus", {"status", "-o", "json"}).second)["pid"] == daemon.pid());
  CHECK(ctl("prometheus", {"top", "--once", "--interval", "100ms"}).first == 0);
  CHECK(ctl("router", {"clear", "--yes"}) == std::pair<int, std::string>(0, "cleared 0 chunks\n"));
  const auto [denied, why] = ctl("prometheus", {"clear", "--yes"});
  CHECK(denied == 1);
  CHECK_THAT(why, Catch::Contains("\"cn:prometheus\" = \"operate\""));
  CHECK(ctl("nobody", {"status"}).first == 1);
  const auto [expired, said] = ctl("old", {"status"});
  CHECK(expired == 3);
  CHECK_THAT(said, Catch::StartsWith("kvistctl: kvistd at " + address + " isn't reached: "));
  CHECK(ctl("router", {"doctor"}).first == 2);

  const std::string status = BinDir() + "/kvistctl --address " + address + " status";
  const auto [without, missing] = Said({"/bin/sh", "-c", status});
  CHECK(without == 2);
  CHECK_THAT(missing, Catch::Contains("--tls-certificate, --tls-key, --tls-ca"));
  const TlsFiles files = certificates.Of("router");
  const std::string variables =
      "KVIST_TLS_CERTIFICATE=" + files.certificate + " KVIST_TLS_KEY=" + files.key + " KVIST_TLS_CA=" + files.ca + " ";
  CHECK(Said({"/bin/sh", "-c", variables + status}).first == 0);
  REQUIRE(::chmod(files.key.c_str(), 0644) == 0);
  const auto [open, mend] = Said({"/bin/sh", "-c", variables + status});
  CHECK(open == 3);
  CHECK_THAT(mend, Catch::Contains("--tls-key: other users may read") && Catch::Contains("chmod o-rwx"));
}

TEST_CASE("Clients of the network who watch jobs leave operators on the machine their places") {
  const Certificates certificates;
  const TempDir dir;
  const uint16_t port = FreePort();
  const DaemonProcess node(dir.path(), {"pool.bytes=8MiB", "pool.touch_threads=0"});
  const std::string file = dir / "c.toml", socket = dir / "c.sock";
  const CertificateAuthority& ca = certificates.ca;
  std::ofstream(file) << "[controller]\nsocket = \"" << socket << "\"\nlisten = \"" << OwnAddress(port)
                      << "\"\n[tls]\ncertificate_file = \"" << ca.file("controller.crt") << "\"\nkey_file = \""
                      << ca.file("controller.key") << "\"\nca_file = \"" << ca.file("ca.crt") << "\"\n"
                      << kRoles << "[nodes]\na = \"unix:" << node.admin_socket() << "\"\n";
  const ChildProcess controller = StartController(file);
  const auto prometheus = ByTls(port, certificates.Of("prometheus"));
  REQUIRE(Eventually([&] { return Health(prometheus).first.ok(); }));
  node.Signal(SIGSTOP);  // so each watcher waits for it
  api::WatchJobRequest request;
  request.set_job("a/1");
  const auto by_tls = api::Controller::NewStub(prometheus);
  struct Watcher {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<api::Job>> stream;
  };
  const auto watch = [&](api::Controller::Stub& stub, std::chrono::milliseconds time) {
    auto watcher = std::make_unique<Watcher>();
    watcher->context.set_deadline(std::chrono::system_clock::now() + time);
    watcher->stream = stub.WatchJob(&watcher->context, request);
    return watcher;
  };
  const auto ends = [](Watcher& watcher) {
    api::Job job;
    while (watcher.stream->Read(&job)) continue;
    return watcher.stream->Finish().error_code();
  };
  const auto local = api::Controller::NewStub(grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()));
  const auto full = [&] { return ends(*watch(*by_tls, std::chrono::milliseconds(300))) == grpc::RESOURCE_EXHAUSTED; };
  grpc::StatusCode code = grpc::RESOURCE_EXHAUSTED;
  CHECK(Eventually([&] {
    std::vector<std::unique_ptr<Watcher>> watchers;
    for (int i = 0; i < 8; ++i) watchers.push_back(watch(*by_tls, std::chrono::seconds(20)));
    bool held = full() || full();
    if (held) code = ends(*watch(*local, std::chrono::milliseconds(300)));
    held = held && full();  // until then
    for (const auto& watcher : watchers) watcher->context.TryCancel();
    for (const auto& watcher : watchers) ends(*watcher);
    return held;
  }));
  CHECK(code != grpc::RESOURCE_EXHAUSTED);
  node.Signal(SIGCONT);
}

TEST_CASE("Two hundred clients that never finish their handshake disturb neither operators on the machine nor engines") {
  const Certificates certificates;
  const TempDir dir;
  const uint16_t port = FreePort();
  DaemonProcess daemon(dir.path(), certificates.Settings(port), FileOf(dir, kRoles));
  const size_t fds = daemon.OpenFds();
  std::vector<int> silent;
  {
    const Bystander bystander(daemon);
    for (int i = 0; i < 200; ++i) {
      silent.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(port);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      REQUIRE(::connect(silent.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    }
    for (int i = 0; i < 5; ++i) CHECK(StatusOf(daemon)["pid"] == daemon.pid());
    CHECK(Status(ByTls(port, certificates.Of("router"))).error_message() == "");
  }
  // They are sent away while they still wait.
  CHECK(kvist::test::FdsFallTo(daemon, fds + 10));
  for (const int fd : silent) ::close(fd);
}

TEST_CASE(
    "A flood of strangers on few descriptors keeps kvist-controller neither from who comes meanwhile nor from who comes "
    "after it") {
  const Certificates certificates;
  const TempDir dir;
  const uint16_t port = FreePort();
  const DaemonProcess node(dir.path(), {"pool.bytes=8MiB", "pool.touch_threads=0", "ssd.enabled=false"});
  const std::string file = dir / "c.toml";
  const CertificateAuthority& ca = certificates.ca;
  std::ofstream(file) << "[controller]\nsocket = \"" << dir / "c.sock"
                      << "\"\nlisten = \"" << OwnAddress(port) << "\"\n[tls]\ncertificate_file = \""
                      << ca.file("controller.crt") << "\"\nkey_file = \"" << ca.file("controller.key") << "\"\nca_file = \""
                      << ca.file("ca.crt") << "\"\n"
                      << kRoles << "[nodes]\na = \"unix:" << node.admin_socket() << "\"\n";
  const std::string log = dir / "log";
  std::optional<StderrTo> to_log(log);
  ChildProcess controller = StartController(file, 160);
  to_log.reset();
  REQUIRE(Eventually([&] { return Health(ByTls(port, certificates.Of("router"))).first.ok(); }));
  sockaddr_in own{}, to{};
  own.sin_family = to.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(port);
  std::vector<UniqueFd> strangers;
  const auto flood = [&](int count) {
    for (int i = 0; i < count; ++i) {
      UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0);
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
      strangers.push_back(std::move(fd));
    }
  };
  flood(400);
  for (int i = 0; i < 10; ++i) {
    flood(40);
    CHECK(Health(ByTls(port, certificates.Of("router"))).first.error_message() == "");
  }
  strangers.clear();
  CHECK(Health(ByTls(port, certificates.Of("router"))).first.error_message() == "");
  controller.Signal(SIGTERM);
  CHECK(controller.Wait() == 0);
  std::ifstream lines(log);
  const std::string said{std::istreambuf_iterator<char>(lines), {}};
  CHECK_THAT(said, Catch::Contains("controller.listen: ") && Catch::Contains("sent away, of 127.0.0.2"));
}
