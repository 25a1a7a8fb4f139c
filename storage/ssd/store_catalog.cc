// What goes into a store's catalog: changes that must come, how far it tells of all records, what the owner has noted.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "storage/ssd/store_state.h"

namespace kvist::ssd {
namespace {

constexpr absl::Duration kCommitAgain = absl::Seconds(1);  // where there was no space on the file system

}  // namespace

uint64_t Store::State::Settled() const { return recovering_ || tails_unread_ ? 0 : SettledByWrites(); }

uint64_t Store::State::SettledByWrites() const { return rowless_.empty() ? sequence_ + 1 : rowless_.begin()->second; }

void Store::State::WhenSettled(std::function<void(const absl::Status&)> then) {
  when_settled_.emplace(next_write_, std::move(then));
  RunSettled();
}

void Store::State::WhenRecovered(std::function<void()> then) {
  when_recovered_.push_back(std::move(then));
  RunSettled();
}

void Store::State::RunSettled() {
  if (!recovery_over_.has_value()) return;
  for (const std::function<void()>& then : std::exchange(when_recovered_, {})) then();
  const absl::Status& how = *recovery_over_;
  while (!when_settled_.empty() &&
         (!how.ok() || rowless_.empty() || rowless_.begin()->first >= when_settled_.begin()->first)) {
    auto next = when_settled_.extract(when_settled_.begin());
    next.mapped()(how);
  }
}

void Store::State::Must(CatalogBatch batch, std::function<void()> then) {
  batch.Settle(Settled());
  commits_->Add(std::move(batch), Commits::Need::kMust, [this, then = std::move(then)](const absl::Status& status) {
    if (status.ok()) then();
    CheckCatalog();
  });
}

void Store::State::CheckCatalog() {
  if (commits_->broken().ok() || closing_) return;
  {
    const absl::MutexLock lock(&mutex_);
    if (!catalog_trouble_.empty()) return;
    catalog_trouble_ = std::string(commits_->broken().message());
  }
  // Whoever waits for a segment's row waits in vain.
  for (const auto& device : devices_) device->Post([](StoreDevice& d) { d.drive().writer().GiveUp(EIO); });
  SayWritable();
}

void Store::State::CatalogChanged() {
  CheckCatalog();
  if (commits_->full().ok() || !commits_->broken().ok()) {
    for (const uint64_t clear : std::exchange(clears_waiting_, {})) WriteClear(clear);
  } else {
    keeper_->PostAt(hands_.Now() + kCommitAgain, [this] { commits_->Retry(); });
    // Whoever waits for a segment's row would hold its chunk until somebody makes room.
    for (const auto& device : devices_) device->Post([](StoreDevice& d) { d.drive().writer().GiveUp(ENOSPC); });
  }
  SayWritable();
}

void Store::State::SayWritable() {
  std::pair<bool, std::string> now{true, {}};
  for (const std::optional<std::string>& why : why_not_) {
    if (!why.has_value()) return;
    if (!why->empty() && now.first) now = {false, *why};
  }
  if (!may_speak_) return;
  if (!commits_->full().ok()) now = {false, std::string(commits_->full().message())};
  if (!commits_->broken().ok())
    now = {false, absl::StrCat(commits_->broken().message(), ": the SSD tier is read until kvistd is started again")};
  if (last_said_ == now) return;
  last_said_ = now;
  owner_->Writable(now.first, now.second);
}

void Store::State::NotePins(std::vector<PinChange> changes) {
  keeper_->Post([this, changes = std::move(changes)]() mutable {
    for (const PinChange& change : changes) {
      if (!recovering_) break;
      if (change.ended) {
        pins_.erase({change.row.space, change.row.name});
      } else {
        pins_[{change.row.space, change.row.name}] = change.row;
      }
    }
    Step("pins: note");
    pin_rows_->Note(std::move(changes));
  });
}

void Store::State::NoteUses(std::vector<UsesNote> notes) {
  keeper_->Post([this, notes = std::move(notes)]() mutable {
    Step("uses: note");
    for (UsesNote& note : notes) use_rows_->Note(std::move(note));
  });
}

void Store::State::SettlePins(std::function<void(absl::Status)> done) {
  keeper_->Post([this, done = std::move(done)] { pin_rows_->Settle(done); });
}

}  // namespace kvist::ssd
