#ifndef KVIST_DAEMON_CTL_JOB_PROGRESS_H_
#define KVIST_DAEMON_CTL_JOB_PROGRESS_H_

#include <cstdint>
#include <string>

#include "daemon/ctl/commands.h"
#include "proto/node.pb.h"

namespace kvist::ctl {

// Shows how far something is: on a terminal a bar that is drawn over itself, elsewhere a line for each tenth of the way.
//
// Lifecycle: any number of Show; the destructor leaves the terminal as it was.
class JobProgress {
 public:
  explicit JobProgress(const Terminal& terminal);
  ~JobProgress();
  JobProgress(const JobProgress&) = delete;
  JobProgress& operator=(const JobProgress&) = delete;

  void Show(const node::v1::Job& job);
  // `name` stands before a line, `kind` before the bar. `share`: 0 to 1.
  void Show(const std::string& name, const std::string& kind, double share, const std::string& achieved);

 private:
  const Terminal& terminal_;
  const bool bar_;
  bool drawn_ = false;
  uint64_t tenths_ = 0;
};

// 0 to 1.
double ShareDone(const node::v1::Job& job);
// What a job has come to so far: "freed 1,234 chunks".
std::string Achieved(const node::v1::Job& job);
// And how fast, of one that runs: ", 1.2 GiB at 0.91 GB/s, 12 s left"; what isn't known is left out.
std::string PaceOf(const node::v1::Job& job);
// "running", or "running, resumed" of one that an earlier kvistd was asked for.
std::string StateOf(const node::v1::Job& job);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_JOB_PROGRESS_H_
