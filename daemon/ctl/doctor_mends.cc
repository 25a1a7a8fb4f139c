#include "daemon/ctl/doctor_mends.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace kvist::ctl {
namespace {

constexpr char kUnit[] = "kvistd";
constexpr char kGpuUnit[] = "kvistd-gpu";

struct Unit {
  std::string name;   // without .service
  bool user = false;  // of a user's own systemd
  std::string systemctl() const { return user ? "systemctl --user" : "sudo systemctl"; }
};

// Whoever doesn't answer, or takes no connections, runs.
bool IsRunning(const Patient& patient) {
  return patient.pid != 0 || patient.status.has_value() ||
         !(patient.why_no_status.ok() || absl::IsFailedPrecondition(patient.why_no_status));
}

// Whoever made the cgroup has chosen its name, and it is to be copied into a shell.
bool IsPlain(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(),
                                      [](char c) { return absl::ascii_isalnum(c) || absl::StrContains(":_.@-", c); });
}

// The unit of which a process is; nothing when it is of none. A shell's is a scope, also below a user's user@.service.
std::optional<Unit> UnitOf(const Patient& patient) {
  std::ifstream file(absl::StrCat(patient.root, "/proc/", patient.pid, "/cgroup"));
  for (std::string line; std::getline(file, line);) {
    const size_t path = line.find(":/");
    const absl::string_view hierarchy = absl::string_view(line).substr(0, path);
    if (path == std::string::npos || (hierarchy != "0:" && !absl::EndsWith(hierarchy, ":name=systemd"))) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(line, '/');
    absl::string_view name = parts.back();
    if (!absl::ConsumeSuffix(&name, ".service") || !IsPlain(name) || absl::StartsWith(name, "user@")) continue;
    const bool user = std::any_of(parts.begin(), parts.end(), [](auto part) { return absl::StartsWith(part, "user@"); });
    return Unit{std::string(name), user};
  }
  return std::nullopt;
}

// What starts kvistd here; nothing when one runs that was started otherwise.
std::optional<Unit> Starter(const Patient& patient) {
  if (IsRunning(patient)) return patient.pid != 0 ? UnitOf(patient) : std::nullopt;
  const std::string enabled =
      absl::StrCat(patient.root, "/etc/systemd/system/multi-user.target.wants/", kGpuUnit, ".service");
  return Unit{::access(enabled.c_str(), F_OK) == 0 ? kGpuUnit : kUnit};
}

std::string Comment(absl::string_view what) { return what.empty() ? "" : absl::StrCat("  # ", what); }

std::string RestartByHand(const Patient& patient, absl::string_view what) {
  const std::string also = what.empty() ? "" : absl::StrCat("; ", what);
  if (patient.pid == 0) return absl::StrCat("# restart kvistd as it was started", also);
  return absl::StrCat("sudo kill ", patient.pid, "  # then start kvistd again as it was started", also);
}

}  // namespace

std::string Start(const Patient& patient) {
  const std::optional<Unit> unit = Starter(patient);
  return unit.has_value() ? absl::StrCat(unit->systemctl(), " start ", unit->name) : "# start kvistd as it was started";
}

std::string Restart(const Patient& patient, absl::string_view what) {
  const std::optional<Unit> unit = Starter(patient);
  if (!unit.has_value()) return RestartByHand(patient, what);
  return absl::StrCat(unit->systemctl(), " restart ", unit->name, Comment(what));
}

std::string Reconfigure(const Patient& patient, absl::string_view what) {
  const std::optional<Unit> unit = Starter(patient);
  // Where another one's configuration is only its starter knows.
  if (!unit.has_value() || unit->user) return Restart(patient, what);
  return absl::StrCat("sudoedit /etc/kvistd/kvistd.toml && ", Restart(patient, what));
}

std::string EditUnit(const Patient& patient, absl::string_view setting, absl::string_view otherwise) {
  const std::optional<Unit> unit = Starter(patient);
  if (!unit.has_value()) return RestartByHand(patient, otherwise);
  return absl::StrCat(unit->systemctl(), " edit ", unit->name, " && ",
                      Restart(patient, absl::StrCat("[Service] ", setting)));
}

std::string LetIn(const std::string& socket, absl::string_view section) {
  struct stat found {};
  // It may be in a directory that this user may not look into.
  if (::stat(socket.c_str(), &found) != 0) return "sudo kvistctl doctor";
  std::string settings;
  if (found.st_gid == 0) settings = absl::StrCat(section, ".socket_group to a group of those who may");
  if ((found.st_mode & S_IWGRP) == 0)
    absl::StrAppend(&settings, settings.empty() ? "" : ", ", section, ".socket_mode to \"0660\"");
  if (!settings.empty())
    return absl::StrCat("sudoedit /etc/kvistd/kvistd.toml  # set ", settings, "; in force when kvistd is started again");
  return absl::StrCat("sudo usermod -aG $(stat -c %G '", socket, "') $USER  # then log in again");
}

}  // namespace kvist::ctl
