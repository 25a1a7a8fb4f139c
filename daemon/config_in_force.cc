#include "daemon/config_in_force.h"

#include <optional>
#include <utility>

#include "daemon/config_keys.h"
#include "daemon/config_machine.h"
#include "daemon/config_text.h"
#include "storage/base/status.h"

namespace kvist::daemon {

absl::StatusOr<ConfigInForce> ConfigInForce::Load(ConfigSources sources, Machines machines) {
  std::optional<Machine> machine;
  if (machines == Machines::kThis) machine = ThisMachine();
  KVIST_ASSIGN_OR_RETURN(Options written, LoadConfig(sources, machine));
  Options options = written;
  KVIST_RETURN_IF_ERROR(FillDefaults(&options));
  KVIST_RETURN_IF_ERROR(options.Validate());
  if (machine.has_value()) KVIST_RETURN_IF_ERROR(CheckMachine(options, *machine));
  return ConfigInForce(std::move(sources), std::move(written), std::move(options));
}

absl::StatusOr<ConfigInForce::Next> ConfigInForce::Reread() const {
  const Machine machine = ThisMachine();
  KVIST_ASSIGN_OR_RETURN(const Options next, LoadConfig(sources_, machine));
  // Whether a restart would take it. What stays as it was keeps the default that was found then: the memory that is available now
  // is less by this daemon's own pool.
  Options restarted = next;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.print(next) == key.print(written_)) key.copy(options_, &restarted);
  }
  KVIST_RETURN_IF_ERROR(FillDefaults(&restarted));
  KVIST_RETURN_IF_ERROR(restarted.Validate());
  KVIST_RETURN_IF_ERROR(CheckMachine(restarted, machine));

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
