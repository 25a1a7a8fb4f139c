#ifndef KVIST_DAEMON_CTL_TOP_H_
#define KVIST_DAEMON_CTL_TOP_H_

#include "daemon/ctl/conversation.h"
#include "daemon/ctl/top_view.h"

namespace kvist::ctl {

// `kvistctl top`: looks again and again, on a terminal on its alternate screen if it has one, else one view after the other, until the terminal's
// wait says that it is enough, which is kOk. A daemon that goes away is waited for on a terminal, once there has been one; else it ends as
// any other question does that isn't answered.
class Top : private Conversation {
 public:
  using Conversation::Conversation;
  ExitCode Run() const;

 private:
  struct Look {
    bool reached = false;  // there was a daemon to ask
    absl::StatusOr<TopSample> sample;
  };
  Look TakeLook() const;
  ExitCode FailedBy(const Look& look) const;
};

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_TOP_H_
