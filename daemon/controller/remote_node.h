#ifndef KVIST_DAEMON_CONTROLLER_REMOTE_NODE_H_
#define KVIST_DAEMON_CONTROLLER_REMOTE_NODE_H_

#include <memory>
#include <string>

#include "daemon/controller/node_api.h"

namespace kvist::controller {

// A kvistd by the path of its admin socket. It needn't be there: it is looked for when it is asked something, and again at most once a second
// while it isn't. Errors also: Unimplemented  an older kvistd doesn't know the call.
std::unique_ptr<NodeApi> MakeRemoteNode(const std::string& socket);

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_REMOTE_NODE_H_
