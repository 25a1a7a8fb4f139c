#ifndef KVIST_DAEMON_SSD_VIEW_H_
#define KVIST_DAEMON_SSD_VIEW_H_

#include <string>

#include "daemon/core/core.h"
#include "daemon/metrics/figures.h"
#include "daemon/options.h"
#include "daemon/rpc/node_control.h"
#include "daemon/ssd_tier.h"

// The SSD tier as operators and monitoring see it.
namespace kvist::daemon {

// What an operator should see to; "" for nothing. The tier is a cache: none of it keeps the node from serving.
std::string TroubleOf(const SsdTier::Status& tier);

// `none`: why there is no tier, when `tier` is null.
rpc::SsdTierStatus ShortRowOf(const SsdTier* tier, const std::string& none, const core::CoreStatus& core,
                              const Options::Ssd& options);
rpc::SsdStatus RowOf(const SsdTier* tier, const std::string& none, const core::CoreStatus& core,
                     const Options::Ssd& options);

// Has a device for each directory of the configuration also when `tier` is null.
metrics::SsdFigures FiguresOf(const SsdTier* tier, const Options& options);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_SSD_VIEW_H_
