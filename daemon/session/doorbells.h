#ifndef KVIST_DAEMON_SESSION_DOORBELLS_H_
#define KVIST_DAEMON_SESSION_DOORBELLS_H_

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "storage/base/ids.h"
#include "storage/base/unique_fd.h"

namespace kvist::session {

// Listens for the sessions that the reactor doesn't look at: those that were quiet for long, and more than one thread can wait for
// at once. One thread of its own, so that the reactor waits for memory only.
//
// Threads: Add and Remove from any.
class Doorbells {
 public:
  // `rung` is called on the thread here, once or more for each time that a bell was rung; soon after Remove it may be called once more.
  static absl::StatusOr<std::unique_ptr<Doorbells>> Create(std::function<void(SessionId)> rung);
  ~Doorbells();

  // `doorbell` is an eventfd, borrowed until Remove. A bell that was rung before is heard, too.
  void Add(SessionId session, int doorbell);
  void Remove(int doorbell);

 private:
  explicit Doorbells(std::function<void(SessionId)> rung) : rung_(std::move(rung)) {}
  void Loop();

  const std::function<void(SessionId)> rung_;
  UniqueFd epoll_;
  UniqueFd stop_;  // eventfd
  std::thread thread_;
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_DOORBELLS_H_
