#ifndef KVIST_DAEMON_CONTROLLER_REMOTE_NODE_H_
#define KVIST_DAEMON_CONTROLLER_REMOTE_NODE_H_

#include <memory>

#include "daemon/controller/node_api.h"
#include "daemon/endpoint/address.h"
#include "daemon/endpoint/tls_files.h"

namespace kvist::controller {

// A kvistd by its admin socket, or by its admin.listen, for which `tls` have passed CheckTlsFiles. It needn't be there: it is looked for when it
// is asked something, and again at most once a second while it isn't. Errors also: Unimplemented  an older kvistd doesn't know the call;
// PermissionDenied  it has given the certificate in `tls` no role for it.
std::unique_ptr<NodeApi> MakeRemoteNode(const endpoint::Address& address, const endpoint::TlsFiles& tls);

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_REMOTE_NODE_H_
