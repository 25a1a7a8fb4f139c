#include "daemon/rpc/roles.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/rpc/client_name.h"

namespace kvist::rpc {
namespace {

constexpr size_t kShown = 4;  // of a certificate's names

absl::string_view Word(Role role) { return role == Role::kRead ? "read" : "operate"; }

std::string Quoted(absl::string_view name) { return absl::StrCat("\"", absl::CHexEscape(name), "\""); }

}  // namespace

std::optional<Role> RoleNamed(absl::string_view word) {
  if (word == "read") return Role::kRead;
  if (word == "operate") return Role::kOperate;
  return std::nullopt;
}

Roles ToRoles(const std::map<std::string, std::string>& words) {
  Roles roles;
  for (const auto& [client, word] : words) {
    if (const std::optional<Role> role = RoleNamed(word)) roles.emplace(client, *role);
  }
  return roles;
}

const std::map<absl::string_view, Role>& CallRoles() {
  static const auto* const roles = new std::map<absl::string_view, Role>{
      {"/kvist.node.v1.Node/Status", Role::kRead},
      {"/kvist.node.v1.Node/Ssd", Role::kRead},
      {"/kvist.node.v1.Node/Sessions", Role::kRead},
      {"/kvist.node.v1.Node/Clear", Role::kOperate},
      {"/kvist.node.v1.Node/Reload", Role::kOperate},
      {"/kvist.node.v1.Node/ListJobs", Role::kRead},
      {"/kvist.node.v1.Node/CancelJob", Role::kOperate},
      {"/kvist.node.v1.Node/WatchJob", Role::kRead},
      {"/kvist.node.v1.Node/ListQuotas", Role::kRead},
      {"/kvist.node.v1.Node/SetQuota", Role::kOperate},
      {"/kvist.node.v1.Node/Lookup", Role::kRead},
      {"/kvist.node.v1.Node/AddPin", Role::kOperate},
      {"/kvist.node.v1.Node/ListPins", Role::kRead},
      {"/kvist.node.v1.Node/RemovePin", Role::kOperate},
      {"/kvist.node.v1.Node/ClearPrompt", Role::kOperate},
      {"/kvist.node.v1.Node/Move", Role::kOperate},
      {"/kvist.node.v1.Node/Prefetch", Role::kOperate},
      {"/kvist.node.v1.Node/Compress", Role::kOperate},
      {"/kvist.node.v1.Node/Decompress", Role::kOperate},
      {"/kvist.node.v1.Feed/WatchChunks", Role::kRead},

      {"/kvist.controller.v1.Controller/Lookup", Role::kRead},
      {"/kvist.controller.v1.Controller/QueryIp", Role::kRead},
      {"/kvist.controller.v1.Controller/Move", Role::kOperate},
      {"/kvist.controller.v1.Controller/Prefetch", Role::kOperate},
      {"/kvist.controller.v1.Controller/Clear", Role::kOperate},
      {"/kvist.controller.v1.Controller/Pin", Role::kOperate},
      {"/kvist.controller.v1.Controller/Unpin", Role::kOperate},
      {"/kvist.controller.v1.Controller/ListPins", Role::kRead},
      {"/kvist.controller.v1.Controller/Compress", Role::kOperate},
      {"/kvist.controller.v1.Controller/Decompress", Role::kOperate},
      {"/kvist.controller.v1.Controller/Health", Role::kRead},
      {"/kvist.controller.v1.Controller/ListNodes", Role::kRead},
      {"/kvist.controller.v1.Controller/GetJob", Role::kRead},
      {"/kvist.controller.v1.Controller/WatchJob", Role::kRead},
      {"/kvist.controller.v1.Controller/CancelJob", Role::kOperate},
      {"/kvist.controller.v1.Controller/ListJobs", Role::kRead},

      {"/grpc.health.v1.Health/Check", Role::kRead},
      {"/grpc.health.v1.Health/Watch", Role::kRead},
      // Not reflection: its streams last as long as a client likes, each with a thread. The socket has it.
  };
  return *roles;
}

std::string WhoIs(const std::vector<std::string>& names) {
  if (names.empty()) return "a certificate without a name";
  const auto end = names.begin() + static_cast<ptrdiff_t>(std::min(names.size(), kShown));
  return absl::StrJoin(names.begin(), end, ", ", [](std::string* out, const std::string& name) { *out += Quoted(name); });
}

absl::Status MayCall(const Roles& roles, const std::vector<std::string>& names, absl::string_view path) {
  std::optional<Role> has;
  for (const std::string& name : names) {
    if (const auto role = roles.find(name); role != roles.end()) has = std::max(has, std::optional(role->second));
  }
  const std::string who = WhoIs(names);
  const auto needed = CallRoles().find(path);
  if (needed == CallRoles().end())
    return absl::PermissionDeniedError(absl::StrCat(who, ": there is no call ", Quoted(path), " over TCP"));
  if (has.has_value() && *has >= needed->second) return absl::OkStatus();
  const auto named = std::find_if(names.begin(), names.end(), [](const std::string& name) { return IsClientName(name); });
  return absl::PermissionDeniedError(
      absl::StrCat(who, has.has_value() ? absl::StrCat(" has the role ", Word(*has)) : " has no role", "; ", path, " takes ",
                   Word(needed->second), ". [roles] of the configuration can give it: ",
                   named == names.end() ? "\"dns:NAME\"" : Quoted(*named), " = \"", Word(needed->second), "\""));
}

}  // namespace kvist::rpc
