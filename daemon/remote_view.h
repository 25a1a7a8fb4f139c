#ifndef KVIST_DAEMON_REMOTE_VIEW_H_
#define KVIST_DAEMON_REMOTE_VIEW_H_

#include "daemon/core/core.h"
#include "daemon/metrics/figures.h"
#include "daemon/remote_tier.h"
#include "daemon/rpc/node_control.h"

// The tier beyond the node as operators and monitoring see it.
namespace kvist::daemon {

rpc::RemoteStatus RowOf(const RemoteTier::Status& tier, const core::CoreStatus& core);
metrics::RemoteFigures FiguresOf(const RemoteTier::Status& tier);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_REMOTE_VIEW_H_
