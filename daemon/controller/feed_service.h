#ifndef KVIST_DAEMON_CONTROLLER_FEED_SERVICE_H_
#define KVIST_DAEMON_CONTROLLER_FEED_SERVICE_H_

#include <cstdint>
#include <memory>

#include "daemon/controller/feed_source.h"

namespace grpc {
class Service;
}

namespace kvist::controller {

// The service Feed of proto/node.proto over a node's chunks, for so many watchers at a time. `source` must outlive it.
//
// Each watcher has one of the server's threads, and one message on its way: while it doesn't read nothing is made for it. An idle one hears once
// a second that the node lives.
std::shared_ptr<grpc::Service> MakeFeedService(FeedSource* source, uint32_t watchers_max);

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_FEED_SERVICE_H_
