#ifndef KVIST_DAEMON_SESSION_PEER_H_
#define KVIST_DAEMON_SESSION_PEER_H_

#include <sys/types.h>

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvist::session {

// Who is at the other end of a connected unix socket, as the kernel says: never what the peer says of itself.
struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  UniqueFd pidfd;  // becomes readable when the process has ended, and can't be mistaken for a later process of that pid
};

// Errors: those of SO_PEERCRED and pidfd_open; NotFound  the peer has ended already.
absl::StatusOr<Peer> IdentifyPeer(int socket);

// Whose it is; nobody's (uid_t(-1)) when the kernel doesn't say. Also of a peer that has ended.
uid_t UidOf(int socket);

// The tenant of a uid: what the configuration says, or the uid itself, so that strangers never share.
std::string TenantOf(uid_t uid, const std::map<std::string, std::string>& tenants);

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_PEER_H_
