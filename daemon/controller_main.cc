// kvist-controller: the controller's API over several kvistds, until a signal ends it. It keeps nothing, so any number may run.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/config.h"
#include "daemon/controller/controller_service.h"
#include "daemon/controller/remote_node.h"
#include "daemon/controller_options.h"
#include "daemon/ctl/completion.h"
#include "daemon/ctl/wrap.h"
#include "daemon/endpoint/credentials.h"
#include "daemon/endpoint/tls_files_in_force.h"
#include "daemon/logging.h"
#include "daemon/main_loop.h"
#include "daemon/process.h"
#include "daemon/rpc/admin_server.h"
#include "daemon/rpc/grpc_log.h"
#include "daemon/rpc/tls_server.h"
#include "daemon/service_notify.h"
#include "daemon/socket_dir.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

constexpr size_t kHelpColumns = 80;
// Four prompts of a million tokens: so who sends too many hears which field it was.
constexpr int kRequestBytesMax = 16 << 20;

enum ExitCode : int { kStopped = 0, kFailed = 1, kWrongConfig = 2 };

// What clients come to: the socket always. Whatever is by TLS, nodes as well, goes by tls_files.
struct Servers {
  std::unique_ptr<endpoint::TlsFilesInForce> tls_files;
  std::unique_ptr<rpc::AdminServer> socket;
  std::unique_ptr<rpc::TlsServer> tls;
};

absl::StatusOr<Servers> Serve(const ControllerOptions& options) {
  const bool by_tls = !options.listen.empty() || std::any_of(options.nodes.begin(), options.nodes.end(),
                                                             [](const auto& node) { return node.address.is_tls(); });
  Servers servers;
  if (by_tls) {
    KVIST_ASSIGN_OR_RETURN(servers.tls_files, endpoint::TlsFilesInForce::Create({.files = options.tls, .say = LogLine}));
  }
  const endpoint::TlsFiles files = by_tls ? servers.tls_files->paths() : endpoint::TlsFiles{};
  rpc::LogGrpc();  // nodes are called by TLS even where nobody is served so
  // One for each server: those who come over TCP have watchers' places, and connections to nodes, of their own.
  const auto over_nodes = [&]() -> absl::StatusOr<std::shared_ptr<grpc::Service>> {
    std::vector<controller::NamedNode> nodes;
    for (const ControllerOptions::Node& node : options.nodes)
      nodes.push_back({node.name, controller::MakeRemoteNode(node.address, files)});
    KVIST_ASSIGN_OR_RETURN(controller::Nodes named, controller::Nodes::Create(std::move(nodes)));
    return controller::MakeControllerService(std::move(named));
  };
  KVIST_RETURN_IF_ERROR(MakeSocketDir("controller.socket", options.socket));
  rpc::AdminServer::Options server;
  server.socket = options.socket;
  server.mode = options.socket_mode;
  server.group = options.socket_group;
  server.services.resize(1);
  KVIST_ASSIGN_OR_RETURN(server.services[0], over_nodes());
  server.section = "controller";
  server.request_bytes_max = kRequestBytesMax;
  KVIST_ASSIGN_OR_RETURN(servers.socket, rpc::AdminServer::Create(std::move(server)));
  if (options.listen.empty()) return servers;
  rpc::TlsServer::Options tls;
  tls.services.resize(1);
  KVIST_ASSIGN_OR_RETURN(tls.services[0], over_nodes());
  tls.listen = options.listen;
  tls.files = files;
  tls.roles = rpc::ToRoles(options.roles);
  tls.section = "controller";
  tls.request_bytes_max = kRequestBytesMax;
  KVIST_ASSIGN_OR_RETURN(servers.tls, rpc::TlsServer::Create(std::move(tls)));
  return servers;
}

int Run(const ControllerOptions& options) {
  SetUpLogging(options.log);
  LeaveNoCore();
  IgnoreBrokenPipes();
  RaiseDescriptorLimit();
  const absl::StatusOr<std::unique_ptr<MainLoop>> loop = MainLoop::Create();
  if (!loop.ok()) {
    spdlog::error("{}", std::string(loop.status().message()));
    return kFailed;
  }
  umask(0077);  // the socket gets its mode explicitly
  absl::StatusOr<Servers> server = Serve(options);
  if (!server.ok()) {
    spdlog::error("can't start: {}", std::string(server.status().message()));
    return kFailed;
  }
  for (const ControllerOptions::Node& node : options.nodes) spdlog::info("node {} at {}", node.name, node.address.text());
  if (!options.listen.empty() && options.roles.empty())
    spdlog::warn("controller.listen: [roles] is empty, so nobody may do anything there");
  const std::string serving = absl::StrCat("serving ", options.nodes.size(), " nodes on ", options.socket,
                                           options.listen.empty() ? "" : absl::StrCat(" and by TLS at ", options.listen));
  spdlog::info("{}", serving);
  NotifyReady(serving);
  std::puts("READY");
  std::fflush(stdout);
  const auto no_reload = []() -> absl::StatusOr<rpc::ReloadResult> {
    spdlog::warn("SIGHUP: the configuration is read at the start only; restart kvist-controller");
    return absl::UnimplementedError("the configuration is read at the start only");
  };
  const int signal = (*loop)->Run({.reload = no_reload, .beat = [] { NotifyWatchdog(); }, .beat_every = WatchdogPeriod()});
  NotifyStopping("ending calls");
  spdlog::info("stopping: {}", signal == SIGINT ? "SIGINT" : "SIGTERM");
  server->tls.reset();
  server->socket.reset();
  spdlog::info("stopped");
  return kStopped;
}

int Main(int argc, char** argv) {
  std::string file, socket;
  std::vector<std::string> nodes;
  bool man = false;
  std::string completion;  // the shell
  CLI::App app("The controller of several kvistds: one gRPC API (proto/controller.proto) over all of them.",
               "kvist-controller");
  app.get_formatter()->column_width(ctl::kHelpColumn);
  app.set_version_flag("--version", "kvist-controller " KVIST_VERSION);
  app.add_option("--config", file,
                 "TOML file: [controller] socket, socket_mode, socket_group, listen; [tls] certificate_file, key_file, "
                 "ca_file; [roles] "
                 "CLIENT = ROLE; [log] level, format; [nodes] NAME = ADDRESS")
      ->type_name("FILE");
  app.add_option("--node", nodes,
                 "A node, on top of the file's, e.g. --node node-a=unix:/run/kvist/admin.sock or "
                 "node-b=tls:node-b.example:9416; may "
                 "be repeated")
      ->type_name("NAME=ADDRESS")
      ->allow_extra_args(false);
  app.add_option("--socket", socket,
                 "Where clients connect, in place of the file's (default: controller.sock beside kvistd's sockets)")
      ->type_name("PATH");
  app.add_flag("--man", man, "Print the manual page, in roff: kvist-controller --man | man -l -");
  app.add_option("--completion", completion,
                 "Print what a shell needs to complete kvist-controller: source <(kvist-controller --completion bash)")
      ->type_name("SHELL")
      ->check(CLI::IsMember(std::vector<std::string>{"bash", "zsh", "fish"}));
  app.footer(
      "Over TCP clients and nodes are reached by TLS only, with certificates on both sides: [tls] and [roles] of the file.\n"
      "exit status: 0 stopped by a signal; 1 can't start; 2 wrong usage or configuration\n"
      "READY on stdout says that clients can connect. The log is on stderr.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream help;
    const int status = app.exit(error, help, std::cerr);
    std::cout << ctl::WrapHelp(help.str(), kHelpColumns) << std::flush;
    return status == 0 ? kStopped : kWrongConfig;
  }
  if (man || !completion.empty()) {
    std::cout << (man ? ctl::ManPage(app, 8) : ctl::Completion(app, completion)) << std::flush;
    return kStopped;
  }
  absl::StatusOr<ControllerOptions> options = LoadControllerOptions(file, nodes);
  if (!options.ok()) {
    for (const std::string& line : ErrorLines(options.status())) std::cerr << "kvist-controller: " << line << "\n";
    return kWrongConfig;
  }
  if (!socket.empty()) options->socket = socket;
  return Run(*options);
}

}  // namespace
}  // namespace kvist::daemon

int main(int argc, char** argv) {
  // Debian's Abseil is built with deadlock detection, which shows in the profile of a request.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return kvist::daemon::Main(argc, argv);
}
