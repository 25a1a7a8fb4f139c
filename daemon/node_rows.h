#ifndef KVIST_DAEMON_NODE_ROWS_H_
#define KVIST_DAEMON_NODE_ROWS_H_

#include <string>

#include "daemon/core/core.h"
#include "daemon/rpc/node_control.h"
#include "daemon/session/activity.h"
#include "daemon/session/engine_session.h"
#include "storage/base/ids.h"

namespace kvist::daemon {

// What core and sessions tell, as the rows of the admin API. On the reactor's thread, like what they are made of.

std::string Hex(const SpaceDigest& digest);  // 64 digits
rpc::Traffic RowOf(const session::Traffic& traffic);
rpc::SessionStatus RowOf(const session::EngineSession& session);
// `remote`: what the remote tier is called, as in an API's remote:NAME. `now`: by the core's clock.
rpc::JobStatus RowOf(const core::Job& job, const std::string& remote, absl::Time now);
rpc::PinStatus RowOf(const core::PinRow& pin, const core::Core& core);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_NODE_ROWS_H_
