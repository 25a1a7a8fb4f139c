#ifndef KVIST_STORAGE_SSD_HANDS_H_
#define KVIST_STORAGE_SSD_HANDS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace kvist::ssd {

class StoreDevice;

// Does what it is given, in that order. What waits is bounded by whoever posts.
//
// Threads: any may post.
class TaskQueue {
 public:
  using Task = std::function<void()>;
  virtual ~TaskQueue() = default;

  virtual void Post(Task task) = 0;
  // Not before then; when it is joined, at once.
  virtual void PostAt(absl::Time when, Task task) = 0;
  // Returns when all that waits is done, and what that posts; nothing is posted any more.
  virtual void Join() = 0;
};

// Who does a store's work, and by which clock: threads, or a test that decides what is done next.
class Hands {
 public:
  virtual ~Hands() = default;

  virtual absl::Time Now() = 0;
  virtual std::unique_ptr<TaskQueue> MakeQueue() = 0;
  // The device goes from now on, until it has been stopped and has ended; Join waits for that.
  virtual void Start(StoreDevice* device) = 0;
  virtual void Join(StoreDevice* device) = 0;
  // Returns when somebody else's work has notified it.
  virtual void Await(const absl::Notification& done) = 0;
  // Threads of its own that a task may start, for what mostly waits; 0: none.
  virtual uint32_t threads() const = 0;
};

// A thread for each queue and each device.
Hands& Threads();

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_HANDS_H_
