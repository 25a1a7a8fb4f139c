#ifndef KVIST_DAEMON_RPC_NODE_SERVICE_H_
#define KVIST_DAEMON_RPC_NODE_SERVICE_H_

#include <memory>

#include "daemon/rpc/node_control.h"

namespace grpc {
class Service;
}

namespace kvist::rpc {

// The service Node of proto/node.proto over `node`, which must outlive it.
//
// Deadlines: the client's, but at most ten minutes; without one, 5 s, and 60 s to watch a job.
std::unique_ptr<grpc::Service> MakeNodeService(NodeControl* node);

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_NODE_SERVICE_H_
