#ifndef KVIST_DAEMON_CONTROLLER_FEED_WIRE_H_
#define KVIST_DAEMON_CONTROLLER_FEED_WIRE_H_

#include "absl/status/statusor.h"
#include "daemon/controller/feed.h"
#include "proto/node.pb.h"

namespace kvist::controller {

// What a node tells of its chunks (feed.h), as it goes over the wire.
//
// Cost: 33 bytes a chunk, and a few for each run of chunks of one group.
node::v1::ChunkNews ToNews(const FeedMessage& message);

// And back. Errors: InvalidArgument  it is none of feed.h's messages: names the field. What it says of spaces and chunks is for the
// directory to judge.
absl::StatusOr<FeedMessage> FromNews(const node::v1::ChunkNews& news);

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_FEED_WIRE_H_
