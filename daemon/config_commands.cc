#include "daemon/config_commands.h"

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "daemon/config_in_force.h"
#include "daemon/config_keys.h"
#include "daemon/config_rules.h"
#include "daemon/config_text.h"

namespace kvist::daemon {

bool RunConfigCommand(ConfigCommand command, const ConfigSources& sources, ConfigFormat format, std::ostream& out,
                      std::ostream& err) {
  const bool json = format == ConfigFormat::kJson;
  if (command == ConfigCommand::kDefault) {
    out << (json ? PrintDefaultsJson() : PrintDefaults());
    return true;
  }
  const absl::StatusOr<ConfigInForce> config = ConfigInForce::Load(
      sources, command == ConfigCommand::kCheck ? ConfigInForce::Machines::kThisAsItIs : ConfigInForce::Machines::kAny);
  if (command == ConfigCommand::kCheck && json) {
    const nlohmann::ordered_json verdict = {
        {"file", sources.file},
        {"ok", config.ok()},
        {"errors", config.ok() ? std::vector<std::string>() : ErrorLines(config.status())},
        {"warnings", config.ok() ? ConfigWarnings(config->options()) : std::vector<std::string>()}};
    out << verdict.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return config.ok();
  }
  if (!config.ok()) {
    for (const std::string& line : ErrorLines(config.status())) err << "kvistd: " << line << "\n";
    return false;
  }
  switch (command) {
    case ConfigCommand::kCheck:
      for (const std::string& warning : ConfigWarnings(config->options())) err << "kvistd: warning: " << warning << "\n";
      out << (sources.file.empty() ? "no file" : sources.file) << ": ok\n";
      break;
    case ConfigCommand::kDump: out << (json ? PrintConfigJson(config->options()) : PrintConfig(config->options())); break;
    case ConfigCommand::kDiff: {
      const std::vector<ConfigDifference> differences = Differences(config->written(), Options());
      out << (json ? PrintDifferencesJson(differences) : PrintDifferences(differences));
      break;
    }
    case ConfigCommand::kDefault: break;
  }
  return true;
}

}  // namespace kvist::daemon
