#ifndef KVIST_DAEMON_RPC_ROLE_CHECK_H_
#define KVIST_DAEMON_RPC_ROLE_CHECK_H_

#include <memory>
#include <string>
#include <vector>

#include "daemon/rpc/roles.h"

namespace grpc {
class AuthContext;
class ServerCredentials;
}  // namespace grpc

namespace kvist::rpc {

// What the client is called behind a connection, by its certificate (client_name.h).
std::vector<std::string> NamesOf(const grpc::AuthContext& client);

// Has every call that comes by some credentials pass MayCall before any service hears of it: the one place where that is asked, whichever
// service it is for. What takes the role operate is logged, with who has called it. It is asked per call, so a connection that is there loses what SetRoles takes away.
//
// Threads: any.
class RoleCheck {
 public:
  explicit RoleCheck(Roles roles);
  ~RoleCheck();
  RoleCheck(const RoleCheck&) = delete;
  RoleCheck& operator=(const RoleCheck&) = delete;

  void SetRoles(Roles roles);
  // Whether the client of these names may call `path`, by the roles as they are now.
  bool May(const std::vector<std::string>& names, absl::string_view path) const;
  // Before the server is built. `credentials` keep what they need.
  void Guard(grpc::ServerCredentials& credentials) const;

 private:
  class Processor;
  std::shared_ptr<Processor> processor_;
};

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_ROLE_CHECK_H_
