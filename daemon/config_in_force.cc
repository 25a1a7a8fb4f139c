#include "daemon/config_in_force.h"

#include <optional>
#include <utility>

#include "daemon/config_keys.h"
#include "daemon/config_machine.h"
#include "daemon/config_text.h"
#include "storage/base/status.h"

namespace kvist::daemon {

absl::StatusOr<ConfigInForce> ConfigInForce::Load(ConfigSources sources, Machines machines) {
  ConfigUse use{.machine = std::nullopt, .fill = FillDefaults};
  if (machines != Machines::kAny) use.machine = ThisMachine();
  if (use.machine.has_value()) use.machine->asks_all = machines == Machines::kThisAsItIs;
  KVIST_ASSIGN_OR_RETURN(LoadedConfig loaded, LoadConfig(sources, use));
  return ConfigInForce(std::move(sources), std::move(loaded.written), std::move(loaded.options));
}

absl::StatusOr<ConfigInForce::Next> ConfigInForce::Reread() const {
  // Whether a restart would take it. What stays as it was keeps the default that was found then: the memory that is available now
  // is less by this daemon's own pool.
  const auto fill = [this](Options* restarted) {
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.print(*restarted) == key.print(written_)) key.copy(options_, restarted);
    }
    return FillDefaults(restarted);
  };
  KVIST_ASSIGN_OR_RETURN(const LoadedConfig loaded, LoadConfig(sources_, {.machine = ThisMachine(), .fill = fill}));
  const Options& next = loaded.written;

  Next all{{}, written_, options_};
  for (const ConfigDifference& difference : Differences(next, written_))
    (difference.live ? all.changes.live : all.changes.restart).push_back(difference.name);
  for (const ConfigKey& key : ConfigKeys()) {
    if (!key.live) continue;
    key.copy(next, &all.written);
    key.copy(next, &all.options);
  }
  for (const ConfigMap& map : ConfigMaps()) {
    if (!map.live) continue;
    map.copy(next, &all.written);
    map.copy(next, &all.options);
  }
  return all;
}

void ConfigInForce::Take(Next next) {
  written_ = std::move(next.written);
  options_ = std::move(next.options);
}

}  // namespace kvist::daemon
