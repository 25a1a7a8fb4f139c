#ifndef KVIST_STORAGE_BASE_MUTEX_H_
#define KVIST_STORAGE_BASE_MUTEX_H_

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace kvist {

// std::mutex that clang's thread-safety analysis knows, for paths of microseconds: Debian's absl::Mutex is built with deadlock
// detection, which shows in the profile of a lookup, and a library may not switch it off for its host.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* mutex_;
};

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_MUTEX_H_
