#ifndef KVIST_DAEMON_RPC_ROLES_H_
#define KVIST_DAEMON_RPC_ROLES_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvist::rpc {

// What a client may do. kRead asks and changes nothing; kOperate may call everything, kRead's calls included.
enum class Role { kRead, kOperate };

// Client (client_name.h) -> its role. Whoever isn't there has none, whichever CA has signed for it.
using Roles = std::map<std::string, Role, std::less<>>;

// "read" or "operate", as a configuration spells them; nothing for another word.
std::optional<Role> RoleNamed(absl::string_view word);
// Of a configuration that has been checked.
Roles ToRoles(const std::map<std::string, std::string>& words);

// The table of all calls: what may be called with which role, in the form of gRPC's paths, "/kvist.node.v1.Node/Status". A call that isn't there
// may be called by nobody over TCP; a test fails while a service of proto/ has one.
const std::map<absl::string_view, Role>& CallRoles();

// A client by its names, those of one certificate, for errors and the log: printable, and no more of them than one reads.
std::string WhoIs(const std::vector<std::string>& names);

// Whether the client of these names may call `path`; of several names the one that may do most counts.
// Errors: PermissionDenied  it may not; names the client, the role that the call takes, and the key that would grant it.
absl::Status MayCall(const Roles& roles, const std::vector<std::string>& names, absl::string_view path);

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_ROLES_H_
