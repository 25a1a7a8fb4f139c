#include "daemon/ctl/doctor.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "daemon/ctl/commands.h"
#include "daemon/rpc/admin_server.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/daemon/fake_node.h"

namespace kvist::ctl {
namespace {

using Catch::Contains;
using Level = Finding::Level;

// A machine whose /proc and /sys are files of the test's.
struct Machine {
  test::TempDir dir;
  Patient patient;

  Machine() {
    patient.root = dir / "root";
    patient.admin_socket = dir / "admin.sock";
    patient.engine_socket = dir / "engine.sock";
    patient.state_dir = dir / "state";
    Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    Write("/proc/meminfo", "MemTotal: 100 kB\nHugePages_Total:       0\nHugePages_Free:        0");
    Write("/sys/devices/system/node/online", "0");
  }
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = patient.root + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  // A kvistd runs there, in this cgroup.
  void RunsIn(const std::string& cgroup) {
    patient.pid = 77;
    Write("/proc/77/cgroup", cgroup);
    if (!patient.status.has_value()) patient.status.emplace();
  }
  Finding Find(const std::string& name) const {
    for (const auto& [check, finding] : Diagnose(patient).findings) {
      if (check == name) return finding;
    }
    FAIL("no check " << name);
    return {};
  }
};

TEST_CASE("Every finding that isn't ok names a command, and every ok one doesn't") {
  const Machine machine;
  const Diagnosis diagnosis = Diagnose(machine.patient);
  CHECK(diagnosis.findings.size() == Checks().size());
  for (const auto& [name, finding] : diagnosis.findings) {
    INFO(name << ": " << finding.text);
    CHECK(finding.text != "");
    CHECK((finding.level == Level::kOk) == finding.mend.empty());
  }
}

TEST_CASE("doctor sees how the machine is set up") {
  Machine machine;
  CHECK(machine.Find("transparent huge pages").level == Level::kOk);
  machine.Write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
  CHECK(machine.Find("transparent huge pages").level == Level::kWarn);
  CHECK(machine.Find("transparent huge pages").mend ==
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");

  CHECK(machine.Find("reserved huge pages").level == Level::kOk);
  machine.Write("/proc/meminfo", "HugePages_Total:      64\nHugePages_Free:       60");
  CHECK(machine.Find("reserved huge pages").text == "60 of 64 are free: a pool that fits takes them");
  machine.RunsIn("0::/system.slice/kvistd.service");
  machine.patient.status->mutable_pool()->set_capacity_bytes(200 << 20);
  CHECK(machine.Find("reserved huge pages").mend == "sudo sysctl vm.nr_hugepages=104; sudo systemctl restart kvistd");

  CHECK(machine.Find("NUMA").text == "one node");
  machine.Write("/sys/devices/system/node/online", "0-1");
  CHECK(machine.Find("NUMA").level == Level::kOk);
  machine.Write("/proc/sys/kernel/numa_balancing", "1");
  CHECK(machine.Find("NUMA").mend == "sudo sysctl kernel.numa_balancing=0");
}

TEST_CASE("doctor sees a state directory that others may write to, and one that is a file") {
  const Machine machine;
  CHECK_THAT(machine.Find("state directory").text, Contains("kvistd makes it"));
  CHECK(machine.Find("disk").level != Level::kFail);
  REQUIRE(::mkdir(machine.patient.state_dir.c_str(), 0700) == 0);
  CHECK(machine.Find("state directory").level == Level::kOk);
  REQUIRE(::chmod(machine.patient.state_dir.c_str(), 0777) == 0);
  CHECK(machine.Find("state directory").level == Level::kFail);
  CHECK_THAT(machine.Find("state directory").mend, Catch::StartsWith("sudo chmod go-w '"));
  REQUIRE(::rmdir(machine.patient.state_dir.c_str()) == 0);
  std::ofstream(machine.patient.state_dir) << "x";
  CHECK(machine.Find("state directory").level == Level::kFail);
}

TEST_CASE("doctor sees what a running kvistd lacks") {
  Machine machine;
  CHECK(machine.Find("kvistd").level == Level::kWarn);
  CHECK(machine.Find("engine socket").level == Level::kOk);
  machine.patient.status.emplace();
  machine.patient.status->set_version("9.9.9");
  CHECK(machine.Find("kvistd").level == Level::kOk);
  CHECK(machine.Find("engine socket").level == Level::kFail);
  CHECK(machine.Find("memlock").level == Level::kWarn);
  CHECK_THAT(machine.Find("versions").text, Contains("kvistd is 9.9.9"));
  machine.patient.status->set_version(KVIST_VERSION);
  machine.patient.status->mutable_pool()->set_locked(true);
  CHECK(machine.Find("versions").level == Level::kOk);
  CHECK(machine.Find("memlock").level == Level::kOk);
}

TEST_CASE("doctor's commands name the unit of the kvistd that runs, and none when it is of none") {
  Machine machine;
  // Of a machine with a GPU the other unit would end what runs.
  machine.Write("/etc/systemd/system/multi-user.target.wants/kvistd-gpu.service", "");
  CHECK(machine.Find("kvistd").mend == "sudo systemctl start kvistd-gpu");
  const auto mend = [&machine](const std::string& cgroup) {
    machine.RunsIn(cgroup);
    machine.patient.status->set_version("9.9.9");
    return machine.Find("versions").mend;
  };
  CHECK_THAT(mend("0::/system.slice/kvistd.service"), Catch::StartsWith("sudo systemctl restart kvistd  #"));
  CHECK_THAT(mend("0::/system.slice/kvistd-gpu.service"), Catch::StartsWith("sudo systemctl restart kvistd-gpu  #"));
  CHECK_THAT(mend("4:memory:/docker.service\n1:name=systemd:/system.slice/kvistd-gpu.service"),
             Catch::StartsWith("sudo systemctl restart kvistd-gpu  #"));
  CHECK_THAT(mend("0::/user.slice/user-7.slice/user@7.service/app.slice/kvistd.service"),
             Catch::StartsWith("systemctl --user restart kvistd  #"));
  for (const char* of_none :
       {"0::/", "0::/user.slice/user-7.slice/session-3.scope",
        "0::/user.slice/user-7.slice/user@7.service/app.slice/a.scope", "0::/system.slice/docker-12.scope",
        "0::/user.slice/user-7.slice/user@7.service", "0::/x;reboot.service"}) {
    CHECK_THAT(mend(of_none), Catch::StartsWith("sudo kill 77  # then start kvistd again as it was started; runs"));
  }
  for (const auto& [name, finding] : Diagnose(machine.patient).findings) {
    INFO(name);
    CHECK_THAT(finding.mend, !Contains("systemctl"));
  }
  machine.patient.pid = 0;  // it is in another PID namespace
  CHECK_THAT(machine.Find("versions").mend, Catch::StartsWith("# restart kvistd as it was started"));
}

TEST_CASE("doctor tells who may not open the admin socket to join its group, and restarts nothing") {
  Machine machine;
  machine.patient.why_no_status = absl::PermissionDeniedError("uid 7 may not open it");
  REQUIRE(::mknod(machine.patient.admin_socket.c_str(), S_IFSOCK | 0660, 0) == 0);
  const auto mend = [&machine](mode_t mode, gid_t group) {
    REQUIRE(::chmod(machine.patient.admin_socket.c_str(), mode) == 0);
    REQUIRE(::chown(machine.patient.admin_socket.c_str(), -1, group) == 0);
    const Finding finding = machine.Find("kvistd");
    CHECK(finding.level == Level::kFail);
    CHECK_THAT(finding.mend, !Contains("systemctl") && !Contains("kill") && !Contains("start kvistd"));
    return finding.mend;
  };
  if (::geteuid() == 0) {
    CHECK(mend(0660, 4) ==
          "sudo usermod -aG $(stat -c %G '" + machine.patient.admin_socket + "') $USER  # then log in again");
    // Whoever is of that group is let in no more than others.
    CHECK_THAT(mend(0600, 4), Contains("admin.socket_mode") && !Contains("usermod") && !Contains("socket_group"));
    // Nobody should join root's group.
    CHECK_THAT(mend(0660, 0), Contains("set admin.socket_group to") && !Contains("usermod") && !Contains("socket_mode"));
  }
  machine.patient.why_no_status = absl::FailedPreconditionError("no kvistd behind it");
  CHECK(machine.Find("kvistd").mend == "sudo systemctl start kvistd");
  machine.patient.why_no_status = absl::DeadlineExceededError("stuck");
  CHECK(machine.Find("kvistd").mend == "# restart kvistd as it was started");
}

TEST_CASE("doctor finds nothing wrong when an operator may not use the engines' socket") {
  if (::geteuid() != 0) return;
  Machine machine;
  REQUIRE(::chmod(machine.dir.path().c_str(), 0711) == 0);
  for (const std::string& socket : {machine.patient.admin_socket, machine.patient.engine_socket})
    REQUIRE(::mknod(socket.c_str(), S_IFSOCK | 0660, 0) == 0);
  REQUIRE(::chown(machine.patient.admin_socket.c_str(), 54321, -1) == 0);
  const auto look = [&machine] {
    REQUIRE(::seteuid(54321) == 0);
    const Finding finding = machine.Find("engine socket");
    REQUIRE(::seteuid(0) == 0);
    return finding;
  };
  CHECK(look().level == Level::kOk);
  CHECK_THAT(look().text, Contains("an operator"));
  // Who is no operator is to be an engine's user.
  REQUIRE(::chown(machine.patient.admin_socket.c_str(), 0, -1) == 0);
  CHECK(look().level == Level::kFail);
}

TEST_CASE("doctor and top are without colours where they aren't wanted or can't be shown") {
  test::TempDir dir;
  FakeNode node;
  const std::string socket = dir / "admin.sock";
  const auto server = rpc::AdminServer::Create({.socket = socket, .mode = 0600, .group = "", .node = &node}).value();
  const auto escapes = [&](const std::string& command) {
    std::ostringstream out, err;
    const Terminal terminal{.out = out,
                            .err = err,
                            .ask = nullptr,
                            .size = [] { return Terminal::Size(); },
                            .wait = [looks = 0](absl::Duration) mutable { return looks++ == 0; }};
    Run({"--socket", socket, command}, terminal);
    CHECK(!out.str().empty());
    return std::pair(Contains("\033[").match(out.str()), Contains("\033[3").match(out.str()));
  };
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm", 1);
  CHECK(escapes("doctor") == std::pair(true, true));
  ::setenv("NO_COLOR", "1", 1);
  CHECK(escapes("doctor") == std::pair(false, false));
  CHECK(escapes("top").first);  // its screen is no colour
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  CHECK(escapes("doctor") == std::pair(false, false));
  CHECK(escapes("top") == std::pair(false, false));
  ::setenv("TERM", "xterm", 1);
}

TEST_CASE("kvistctl doctor works without a kvistd, and fails when something does") {
  test::TempDir dir;
  std::ostringstream out, err;
  const Terminal terminal{.out = out, .err = err, .ask = nullptr};
  const std::string socket = dir / "admin.sock";
  SECTION("nothing fails") {
    CHECK(Run({"--socket", socket, "doctor", "--state-dir", dir / "state"}, terminal) == kOk);
    CHECK_THAT(out.str(), Contains("none runs") && Contains("$ sudo systemctl start kvistd") && Contains(", 0 fail\n"));
  }
  SECTION("as JSON, with what fails") {
    REQUIRE(::chmod(dir.path().c_str(), 0777) == 0);
    CHECK(Run({"--socket", socket, "doctor", "-o", "json", "--state-dir", dir.path()}, terminal) == kRefused);
    const auto json = nlohmann::json::parse(out.str());
    CHECK(json["fail"] == 1);
    CHECK(json["findings"].size() == Checks().size());
  }
  SECTION("with a kvistd that doesn't answer") {
    FakeNode node;
    const auto server = rpc::AdminServer::Create({.socket = socket, .mode = 0600, .group = "", .node = &node}).value();
    node.Hang();
    CHECK(Run({"--socket", socket, "--timeout", "20ms", "doctor", "--state-dir", dir / "state"}, terminal) == kRefused);
    CHECK_THAT(out.str(), Contains("kvistd at " + socket + " didn't answer within 20 ms") && !Contains("Deadline") &&
                              !Contains("usermod"));
    node.Stop();
  }
  SECTION("with a kvistd") {
    FakeNode node;
    const auto server = rpc::AdminServer::Create({.socket = socket, .mode = 0600, .group = "", .node = &node}).value();
    CHECK(Run({"--socket", socket, "doctor", "--state-dir", dir / "state"}, terminal) == kRefused);
    CHECK_THAT(out.str(), Contains("/run/kvist/engine.sock: No such file or directory, although kvistd runs"));
    // Where the kvistd keeps its state is what it says, and no matter of who asks.
    out.str("");
    Run({"--socket", socket, "doctor"}, terminal);
    CHECK_THAT(out.str(), Contains("/var/lib/kvist-of-another isn't there, although kvistd runs"));
  }
}

TEST_CASE("doctor sees how a running kvistd is with its SSD tier, and what would mend it") {
  Machine machine;
  CHECK(machine.Find("SSD tier").level == Level::kOk);
  machine.RunsIn("0::/system.slice/kvistd.service");
  node::v1::SsdTier& ssd = *machine.patient.status->mutable_ssd();
  ssd.set_state("off");
  ssd.set_trouble("ssd.enabled is false");
  CHECK(machine.Find("SSD tier").level == Level::kOk);  // as its operator wants it
  ssd.add_directories()->set_path("/mnt/nvme");
  ssd.set_trouble("ssd.path: /mnt/nvme: Read-only file system");
  CHECK(machine.Find("SSD tier").level == Level::kWarn);
  CHECK_THAT(machine.Find("SSD tier").mend, Contains("systemctl edit kvistd") && Contains("ReadWritePaths=/mnt/nvme"));
  ssd.set_state("read-only");
  ssd.set_trouble("it takes no writes: No space left on device");
  CHECK_THAT(machine.Find("SSD tier").text, Contains("read-only") && Contains("/mnt/nvme") && Contains("No space left"));
  CHECK_THAT(machine.Find("SSD tier").mend, Contains("sudoedit /etc/kvistd/kvistd.toml") && Contains("[ssd] path"));
  ssd.set_trouble("it takes no writes: there are less than 32MiB left; free some space");
  CHECK_THAT(machine.Find("SSD tier").mend, Contains("where there is room"));
  ssd.set_state("on");
  ssd.set_trouble("");
  CHECK(machine.Find("SSD tier").text == "on, in /mnt/nvme");
  ssd.mutable_directories(0)->set_how("8 threads");
  CHECK(machine.Find("io_uring").level == Level::kWarn);
  CHECK_THAT(machine.Find("io_uring").text, Contains("/mnt/nvme by 8 threads"));
  ssd.mutable_directories(0)->set_how("io_uring, direct I/O");
  CHECK(machine.Find("io_uring").text == "the running kvistd uses it");
}

TEST_CASE("doctor sees a remote store that doesn't answer, and that kvistd's unit may shut it off") {
  Machine machine;
  CHECK(machine.Find("remote store").level == Level::kOk);
  machine.RunsIn("0::/system.slice/kvistd.service");
  CHECK(machine.Find("remote store").text == "none");
  node::v1::RemoteTier& remote = *machine.patient.status->mutable_remote();
  remote.set_name("remote:shared");
  remote.set_store("redis://far.example:6379");
  remote.set_reachable(true);
  CHECK(machine.Find("remote store").level == Level::kOk);
  remote.set_reachable(false);
  remote.set_why_not("Operation not permitted");
  CHECK(machine.Find("remote store").level == Level::kWarn);
  CHECK_THAT(machine.Find("remote store").text, Contains("redis://far.example:6379") && Contains("Operation not permitted"));
  CHECK_THAT(machine.Find("remote store").mend, Contains("IPAddressAllow="));
  remote.set_store("file:///srv/kv");
  CHECK_THAT(machine.Find("remote store").mend, Contains("ReadWritePaths=/srv/kv"));
}

TEST_CASE("doctor sees a driver, the GPUs that are served, and those that are lost") {
  Machine machine;
  CHECK(machine.Find("GPUs").text == "no NVIDIA driver here: engines on CPUs are served");
  machine.Write("/proc/driver/nvidia/version", "NVRM version: ...");
  CHECK_THAT(machine.Find("GPUs").text, Contains("when the first engine on a GPU comes"));
  machine.RunsIn("0::/system.slice/kvistd.service");
  node::v1::StatusReply& status = *machine.patient.status;
  status.mutable_pool()->set_capacity_bytes(4ull << 30);
  CHECK(machine.Find("GPUs").level == Level::kOk);
  status.add_gpus()->set_name("a GPU");
  CHECK(machine.Find("GPUs").level == Level::kWarn);
  CHECK_THAT(machine.Find("GPUs").mend, Contains("LimitMEMLOCK=infinity"));
  status.mutable_pool()->set_pinned_bytes(4ull << 30);
  CHECK(machine.Find("GPUs").level == Level::kOk);
  status.mutable_gpus(0)->set_lost("it fell off the bus");
  CHECK(machine.Find("GPUs").level == Level::kFail);
  CHECK_THAT(machine.Find("GPUs").text, Contains("a GPU is lost") && Contains("it fell off the bus"));
}

}  // namespace
}  // namespace kvist::ctl
