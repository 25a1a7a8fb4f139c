#ifndef KVIST_DAEMON_CONTROLLER_LOCAL_NODE_H_
#define KVIST_DAEMON_CONTROLLER_LOCAL_NODE_H_

#include <memory>

#include "daemon/controller/node_api.h"
#include "daemon/rpc/node_control.h"

namespace kvist::controller {

// The node of this process, over what its admin API uses; `control` must outlive it. Answers on the caller's thread.
std::unique_ptr<NodeApi> MakeLocalNode(rpc::NodeControl* control);

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_LOCAL_NODE_H_
