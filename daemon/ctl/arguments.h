#ifndef KVIST_DAEMON_CTL_ARGUMENTS_H_
#define KVIST_DAEMON_CTL_ARGUMENTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "daemon/ctl/target.h"
#include "proto/node.pb.h"
#include "storage/base/units.h"

namespace kvist::ctl {

inline constexpr absl::Duration kQuestionTime = absl::Seconds(5);
inline constexpr absl::Duration kJobTime = absl::Seconds(60);

// What a command line says; each command uses its own part.
struct Arguments {
  Target target;
  bool by_controller = false;  // the target is a kvist-controller
  std::string output = "table";
  std::optional<absl::Duration> timeout;
  std::string space;
  std::string request;
  bool yes = false;
  std::string job;  // its id: a number, of a controller NODE/NUMBER
  std::string tenant;
  Bytes quota{};
  std::string pin;  // as `job`
  node::v1::SpaceFilter filter;
  std::string tokens, keys;  // files
  std::string salt, lora;
  bool dry_run = false;
  std::string from, to;  // tiers
  std::string tier, method;
  bool keep_source = false;
  std::string node;
  std::string owner;
  absl::Duration lasts = absl::ZeroDuration();  // zero: until it is removed
  absl::Duration interval = absl::Seconds(1);
  bool once = false;
  std::string state_dir;
  std::string ssd_path;
  bool repair = false;
  std::string shell;

  bool has_prompt() const { return !tokens.empty() || !keys.empty(); }
};

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_ARGUMENTS_H_
