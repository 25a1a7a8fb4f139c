#ifndef KVIST_DAEMON_CTL_TOP_H_
#define KVIST_DAEMON_CTL_TOP_H_

#include "absl/time/time.h"
#include "daemon/ctl/commands.h"
#include "daemon/ctl/target.h"

namespace kvist::ctl {

struct TopOptions {
  Target target;
  bool json = false;
  bool once = false;  // one look, of one interval
  absl::Duration interval = absl::Seconds(1);
  absl::Duration timeout = absl::Seconds(5);  // of each question to the daemon
};

// `kvistctl top`: looks again and again, on a terminal on its alternate screen, else one view after the other, until the terminal's
// wait says that it is enough. A daemon that goes away is waited for, once there has been one.
ExitCode RunTop(const TopOptions& options, const Terminal& terminal);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_TOP_H_
