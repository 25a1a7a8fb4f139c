#ifndef KVIST_DAEMON_CONFIG_IN_FORCE_H_
#define KVIST_DAEMON_CONFIG_IN_FORCE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/config.h"

namespace kvist::daemon {

// The configuration that a kvistd runs with, and where it came from, so that it can be read again.
//
// Lifecycle: Load -> any number of Reread, each followed by Take when all of it could be put in force, or by nothing.
// Threads: one.
class ConfigInForce {
 public:
  // What a reload found different from what is in force, by full names.
  struct Changes {
    std::vector<std::string> live;     // the caller puts them in force where they are used, and has them taken then
    std::vector<std::string> restart;  // wait for a restart, as they do after every reload until it comes
  };

  // For this machine, also for what it may get later (Machine::asks_all), or only to look at it, for any.
  enum class Machines { kThis, kThisAsItIs, kAny };
  // Errors: those of LoadConfig.
  static absl::StatusOr<ConfigInForce> Load(ConfigSources sources, Machines machines = Machines::kThis);

  // As the sources say it: what they leave out is as in Options().
  const Options& written() const { return written_; }
  // The same with defaults filled in, as they were found when kvistd started.
  const Options& options() const { return options_; }

  // What the sources say now, as far as it needs no restart.
  struct Next {
    Changes changes;
    Options written;
    Options options;
  };
  // Reads the same sources again; changes nothing. Errors: as above.
  absl::StatusOr<Next> Reread() const;
  // It is in force.
  void Take(Next next);

 private:
  ConfigInForce(ConfigSources sources, Options written, Options options)
      : sources_(std::move(sources)), written_(std::move(written)), options_(std::move(options)) {}

  ConfigSources sources_;
  Options written_;
  Options options_;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CONFIG_IN_FORCE_H_
