#ifndef KVIST_DAEMON_MAIN_LOOP_H_
#define KVIST_DAEMON_MAIN_LOOP_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/rpc/node_control.h"
#include "storage/base/unique_fd.h"

namespace kvist::daemon {

// What the main thread does while a kvistd serves: it waits for signals, for reloads that operators ask for, and for the time of the
// next beat.
//
// Lifecycle: Create before other threads start, so that they don't take the signals -> Run once.
// Threads: AskReload from any; Run on the thread that called Create.
class MainLoop {
 public:
  using Reload = std::function<absl::StatusOr<rpc::ReloadResult>()>;
  struct Work {
    Reload reload;                                         // on SIGHUP and for AskReload
    std::function<void()> beat;                            // once in `beat_every`
    absl::Duration beat_every = absl::InfiniteDuration();  // infinite: never
  };

  // Blocks SIGINT, SIGTERM and SIGHUP; only Run hears them. Errors: no descriptors.
  static absl::StatusOr<std::unique_ptr<MainLoop>> Create();

  // Has the configuration reloaded, and waits for what came of it; until Run runs, too.
  // Errors: those of Work::reload.  DeadlineExceeded  not done in time; it goes on.  Unavailable  kvistd is stopping.
  absl::StatusOr<rpc::ReloadResult> AskReload(absl::Time deadline);

  // Returns SIGINT or SIGTERM when one comes; a second one then ends the process at once.
  int Run(const Work& work);

 private:
  struct Asked;
  MainLoop() = default;
  void AnswerAll(const Reload& reload);

  UniqueFd signals_;
  UniqueFd wake_;
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<Asked>> asked_ ABSL_GUARDED_BY(mutex_);  // bounded by the admin server's threads
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_MAIN_LOOP_H_
