#ifndef KVIST_DAEMON_STATE_DIR_H_
#define KVIST_DAEMON_STATE_DIR_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvist::daemon {

// Whether Lock could make the directory, or use the one that is there; makes nothing. Doesn't ask who has it now.
// Errors: as those of Lock, with the setting's name.
absl::Status CheckStateDir(const std::string& path);

// The directory that keeps what outlives the daemon, held by one daemon at a time.
//
// Lifecycle: Lock makes the directory (and those above it; 0700) when it isn't there, and locks its file `lock`, which holds the
//   owner's pid -> the destructor unlocks. The kernel unlocks, too, when the process dies in any way; the file stays. A daemon that can't
//   start calls GiveUp before.
class StateDir {
 public:
  // Errors: FailedPrecondition  a live daemon has it (the message says its pid), other users could write to it, or one that gave up removed it
  //                             meanwhile.
  //         those of mkdir and open otherwise.
  static absl::StatusOr<StateDir> Lock(const std::string& path);

  StateDir(StateDir&&) = default;
  StateDir& operator=(StateDir&&) = default;

  const std::string& path() const { return path_; }

  // Removes the directory with all that is in it if Lock made it: then it holds nothing but beginnings of this process's. One that was there
  // before stays as it is, and so do directories above it.
  void GiveUp();

 private:
  StateDir(std::string path, bool is_new, UniqueFd lock) : path_(std::move(path)), is_new_(is_new), lock_(std::move(lock)) {}

  std::string path_;
  bool is_new_;  // made by Lock
  UniqueFd lock_;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_STATE_DIR_H_
