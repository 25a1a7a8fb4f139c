#ifndef KVIST_DAEMON_RPC_REQUESTS_H_
#define KVIST_DAEMON_RPC_REQUESTS_H_

#include "absl/status/statusor.h"
#include "daemon/rpc/node_control.h"
#include "daemon/rpc/prompt.h"
#include "proto/node.pb.h"

namespace kvist::rpc {

// Messages of the admin API in the node's words.
// Errors: InvalidArgument  names the field, and what it may be.
absl::StatusOr<SpaceFilter> ReadFilter(const node::v1::SpaceFilter& filter);
absl::StatusOr<Prompt> ReadPrompt(const node::v1::Prompt& prompt);
absl::StatusOr<PinWish> ReadPinWish(const node::v1::AddPinRequest& request);
// Errors also: Unimplemented  names the tier or node that chunks can't be moved to or from.
absl::StatusOr<MoveWish> ReadMove(const node::v1::MoveRequest& request);
absl::StatusOr<MoveWish> ReadPrefetch(const node::v1::PrefetchRequest& request);

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_REQUESTS_H_
