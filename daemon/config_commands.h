#ifndef KVIST_DAEMON_CONFIG_COMMANDS_H_
#define KVIST_DAEMON_CONFIG_COMMANDS_H_

#include <iosfwd>

#include "daemon/config.h"

namespace kvist::daemon {

// `kvistd config ...`: what a configuration is, without starting anything.
//
//   check     "FILE: ok", or every error, a line each with its place; also what this machine hasn't got, disks and a certificate
//             in time too (config_machine.h)
//   default   every key with its default and what it is for, as a file to start from; reads no sources
//   dump      the configuration as kvistd would run with it: file, --set, defaults filled in
//   diff      only what file and --set make different from the defaults
enum class ConfigCommand { kCheck, kDefault, kDump, kDiff };
enum class ConfigFormat { kText, kJson };

// True when the configuration is right. What is wrong goes to `err`, or into the object that `check` writes as JSON to `out`.
bool RunConfigCommand(ConfigCommand command, const ConfigSources& sources, ConfigFormat format, std::ostream& out,
                      std::ostream& err);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CONFIG_COMMANDS_H_
