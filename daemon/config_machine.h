#ifndef KVIST_DAEMON_CONFIG_MACHINE_H_
#define KVIST_DAEMON_CONFIG_MACHINE_H_

#include <vector>

#include "daemon/config_rules.h"
#include "daemon/options.h"
#include "storage/pool/memory_limit.h"

namespace kvist::daemon {

// What a configuration can ask of a machine and not get. Its files, directories and groups are asked for where they are.
struct Machine {
  std::vector<int> cpus;     // that this process may use, ascending
  pool::MemoryLimit memory;  // that it may ever have
  // Also for what may come by itself, a disk, an address, a new certificate: a start does without, or is tried again
  bool asks_all = false;
};
Machine ThisMachine();

// What `options` name that isn't here, or is more than there is: CPUs, memory, groups, addresses, directories that this user can't make or
// write to, files of TLS and of the remote tier where those are in use. Only what a start would fail of in any case, but for `asks_all`.
// Makes nothing. What is left out in `options` is right.
std::vector<ConfigProblem> FindLacks(const Options& options, const Machine& machine);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CONFIG_MACHINE_H_
