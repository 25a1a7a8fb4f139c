#ifndef KVIST_STORAGE_SSD_COMMITS_H_
#define KVIST_STORAGE_SSD_COMMITS_H_

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "storage/ssd/catalog.h"

namespace kvist::ssd {

// Changes on their way into a catalog, one batch of it at a time, so that a change that failed and is tried again never comes behind a
// later one. What waits goes together.
//
// Threads: one, the owner's. Clockless: the owner is asked to call Retry.
class Commits {
 public:
  using Then = std::function<void(const absl::Status&)>;
  enum class Need : uint8_t {
    kTry,   // it may fail
    kMust,  // tried again until there is space; fails when the catalog takes nothing any more, or with Close
  };
  // `post`: runs a task on the owner's thread; from any. `on_change`: full() or broken() says something else, or there still is no space: while
  // there is none, Retry is asked for each time, after a while.
  Commits(Catalog* catalog, std::function<void(std::function<void()>)> post, std::function<void()> on_change)
      : catalog_(catalog), post_(std::move(post)), on_change_(std::move(on_change)) {}

  // `then` when it is durable, or why it isn't; in the order of the calls, but for those that are tried again.
  void Add(CatalogBatch changes, Need need, Then then);
  // Tries what waits, or, when nothing does, whether anything would go.
  void Retry();
  // Nothing is tried again any more. When it is idle then it stays so, and the catalog may go.
  void Close();

  bool idle() const { return waiting_.empty() && running_.empty(); }
  // Why nothing is taken any more; OK: it is.
  const absl::Status& broken() const { return broken_; }
  // ResourceExhausted: the last one found no space, and says where; what may fail does until a Retry. OK: it isn't so.
  const absl::Status& full() const { return full_; }

 private:
  struct Item {
    CatalogBatch changes;
    Need need = Need::kTry;
    Then then;
  };
  static constexpr size_t kTogether = 1 << 20;  // bytes

  void Send();
  void Done(const absl::Status& status);

  Catalog* const catalog_;
  const std::function<void(std::function<void()>)> post_;
  const std::function<void()> on_change_;
  std::deque<Item> waiting_;
  std::vector<Item> running_;
  bool resting_ = false;  // until Retry
  bool closed_ = false;
  absl::Status full_;
  absl::Status broken_;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_COMMITS_H_
