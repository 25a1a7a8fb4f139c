#ifndef KVIST_DAEMON_JOB_KEEPER_H_
#define KVIST_DAEMON_JOB_KEEPER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/job_file.h"

namespace kvist::daemon {

// Keeps the file of the jobs as they are. A thread of its own writes it, always the last that was said, so the reactor waits for no disk.
//
// What couldn't be written is tried again every `again`, and once more in the end: an old list has later daemons run jobs that are over.
//
// Lifecycle: create -> Keep any number of times -> the destructor returns when the last has been written, or couldn't be.
// Threads: any but the destructor's.
class JobKeeper {
 public:
  explicit JobKeeper(std::string path, absl::Duration again = absl::Seconds(5));
  ~JobKeeper();
  JobKeeper(const JobKeeper&) = delete;
  JobKeeper& operator=(const JobKeeper&) = delete;

  // The file is to hold this; returns at once.
  void Keep(JobFile jobs);
  // Waits until the disk has all that Keep was given before, or `deadline`. False: not in time, or it couldn't be written, which the log says.
  bool Settle(absl::Time deadline);

 private:
  void Run();

  const std::string path_;
  const absl::Duration again_;
  absl::Mutex mutex_;
  absl::CondVar said_more_, tried_more_;
  std::optional<JobFile> next_ ABSL_GUARDED_BY(mutex_);
  uint64_t said_ ABSL_GUARDED_BY(mutex_) = 0;   // lists that Keep was given
  uint64_t tried_ ABSL_GUARDED_BY(mutex_) = 0;  // of them, those that have been written, or couldn't be, or a later one was
  bool written_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_JOB_KEEPER_H_
