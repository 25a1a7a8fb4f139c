#ifndef KVIST_DAEMON_CONTROLLER_CONTROLLER_SERVICE_H_
#define KVIST_DAEMON_CONTROLLER_CONTROLLER_SERVICE_H_

#include <memory>

#include "daemon/controller/nodes.h"

namespace grpc {
class Service;
}

namespace kvist::controller {

// The service Controller of proto/controller.proto over these nodes.
//
// Deadlines: the client's, but at most ten minutes; without one, 10 s, and 60 s to watch a job.
std::shared_ptr<grpc::Service> MakeControllerService(Nodes nodes);

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_CONTROLLER_SERVICE_H_
