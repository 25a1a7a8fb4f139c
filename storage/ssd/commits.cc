#include "storage/ssd/commits.h"

#include <algorithm>
#include <utility>

namespace kvist::ssd {

void Commits::Add(CatalogBatch changes, Need need, Then then) {
  waiting_.push_back({std::move(changes), need, std::move(then)});
  Send();
}

void Commits::Retry() {
  resting_ = false;
  if (!closed_ && idle() && !full_.ok()) return Add({}, Need::kTry, [](const absl::Status&) {});
  Send();
}

void Commits::Close() {
  closed_ = true;
  Retry();
}

void Commits::Send() {
  while (running_.empty() && !waiting_.empty()) {
    if (!broken_.ok()) {
      const Item item = std::move(waiting_.front());
      waiting_.pop_front();
      item.then(broken_);
      continue;
    }
    if (resting_) {  // what may fail does: whoever asked has other things to do than wait for space
      const auto may_fail =
          std::find_if(waiting_.begin(), waiting_.end(), [](const Item& i) { return i.need == Need::kTry; });
      if (may_fail == waiting_.end()) return;
      const Item item = std::move(*may_fail);
      waiting_.erase(may_fail);
      item.then(full_);
      continue;
    }
    CatalogBatch together;
    while (!waiting_.empty() && (running_.empty() || together.bytes() + waiting_.front().changes.bytes() <= kTogether)) {
      together.Append(waiting_.front().changes);
      running_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    const absl::Status taken = catalog_->Commit(
        std::move(together), [this](const absl::Status& status) { post_([this, status] { Done(status); }); });
    if (!taken.ok()) Done(taken);
  }
}

void Commits::Done(const absl::Status& status) {
  std::vector<Item> ended = std::move(running_);
  running_.clear();
  const bool full = absl::IsResourceExhausted(status);
  if (!status.ok() && !full) {
    broken_ = status;
    on_change_();
  }
  if (status.ok() && !full_.ok()) {
    full_ = absl::OkStatus();
    on_change_();
  }
  if (full && !closed_) {
    full_ = status;
    if (!resting_) {
      resting_ = true;
      on_change_();
    }
    // Back to where they were, in their order.
    auto kept = std::stable_partition(ended.begin(), ended.end(), [](const Item& i) { return i.need == Need::kTry; });
    waiting_.insert(waiting_.begin(), std::make_move_iterator(kept), std::make_move_iterator(ended.end()));
    ended.erase(kept, ended.end());
  }
  for (const Item& item : ended) item.then(status);
  Send();
}

}  // namespace kvist::ssd
