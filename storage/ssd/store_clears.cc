// What no later start is to find: all of a space, by a record that says so, or single chunks, without one.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/ssd/store_state.h"

namespace kvist::ssd {
namespace {

constexpr absl::Duration kSettleAnyway = absl::Seconds(1);  // whatever is written meanwhile

}  // namespace

void Store::State::Clear(std::optional<uint32_t> space, std::function<void(absl::Status)> done) {
  keeper_->Post([this, space, done = std::move(done)]() mutable {
    OneClear clear;
    clear.done = std::move(done);
    if (space) {
      const SpaceRow* const row = spaces_.Find(*space);
      if (row == nullptr) return clear.done(absl::InvalidArgumentError(absl::StrCat("no space has the number ", *space)));
      clear.row.space = row->digest;
    }
    clear.row.sequence = ++sequence_;
    BeginClear(std::move(clear));
  });
}

void Store::State::BeginClear(OneClear clear) {
  if (closing_) {
    if (clear.done) clear.done(StatusOf(ECANCELED));
    return;
  }
  const ClearRow& row = clear.row;
  if (!clear.again) {
    {
      const absl::MutexLock lock(&mutex_);
      cleared_[row.space] = std::max(cleared_[row.space], row.sequence);
    }
    for (auto& [number, write] : writes_) {
      if (row.space == SpaceDigest{} || write.space == row.space) write.cleared = true;
    }
  }
  clear.slot.reset(static_cast<std::byte*>(std::aligned_alloc(kUnit.value, kUnit.value)));
  KVIST_CHECK(clear.slot != nullptr);
  const uint64_t number = next_clear_++;
  ClearRow row_first = clear.row;
  const bool again = clear.again;
  clearing_.emplace(number, std::move(clear));
  if (again) return WriteClear(number);
  // A record without a row would be in force after a rebuild alone, and take what was called durable since it was written.
  const auto before = clear_records_.find(row_first.space);
  row_first.place = before == clear_records_.end() ? Place{} : before->second.place;
  CatalogBatch batch;
  PutClear(row_first, &batch);
  Step("clear: row first");
  commits_->Add(std::move(batch), Commits::Need::kMust, [this, number](const absl::Status& status) {
    const absl::Status why = closing_ ? StatusOf(ECANCELED) : status;
    why.ok() ? WriteClear(number) : EndClear(number, why);
    CheckCatalog();
  });
}

// A space has one row for its clears: it never says less than it did.
void Store::State::PutClear(const ClearRow& row, CatalogBatch* batch) {
  uint64_t& latest = clears_asked_[row.space];
  latest = std::max(latest, row.sequence);
  ClearRow put = row;
  put.sequence = latest;
  batch->Put(put);
}

void Store::State::WriteClear(uint64_t number) {
  // No segment's row would come any more, and so no segment to write it to.
  if (!commits_->broken().ok()) return EndClear(number, absl::UnavailableError(commits_->broken().message()));
  OneClear& clear = clearing_.at(number);
  Step("clear: record");
  RecordHeader header{};
  header.kind = RecordKind::kClear;
  header.order = SlotOrder::kLayerMajor;
  header.sequence = clear.row.sequence;
  header.space = clear.row.space;
  const Writer::Shard shard{.ticket = kClearTicket | number, .slot = clear.slot.get(), .header = header};
  devices_[clear.tries++ % devices_.size()]->Post([shard](StoreDevice& device) {
    device.Write(shard);
    device.drive().writer().Flush();
  });
}

void Store::State::ClearEnded(uint64_t number, const Writer::Outcome& outcome) {
  OneClear& clear = clearing_.at(number);
  if (outcome.error != 0) {
    // A clear holds nobody's slots: it can wait for its segment's row.
    if (!closing_ && !commits_->full().ok() && commits_->broken().ok()) {
      clear.tries = 0;
      clears_waiting_.push_back(number);
      return;
    }
    if (!closing_ && clear.tries < 2 * devices_.size()) return WriteClear(number);
    return EndClear(number, StatusOf(outcome.error));
  }
  clear.row.place = outcome.place;
  const auto before = clear_records_.find(clear.row.space);
  const bool superseded = before != clear_records_.end() && before->second.sequence > clear.row.sequence;
  if (superseded) {
    KillAll({{outcome.place}, 1});
    return EndClear(number, absl::OkStatus());
  }
  CatalogBatch batch;
  PutClear(clear.row, &batch);
  Step("clear: row");
  commits_->Add(std::move(batch), Commits::Need::kMust, [this, number](const absl::Status& status) {
    if (status.ok()) {
      const ClearRow row = clearing_.at(number).row;
      ClearRow& in_force = clear_records_[row.space];
      const Place old = in_force.sequence > row.sequence ? row.place : in_force.place;
      if (in_force.sequence <= row.sequence) in_force = row;
      KillAll({{old}, 1});
    }
    EndClear(number, status);
    CheckCatalog();
  });
}

void Store::State::EndClear(uint64_t number, const absl::Status& status) {
  auto node = clearing_.extract(number);
  Step("clear: done");
  if (node.mapped().done) node.mapped().done(status);
}

// Records of clears outlive what they clear: those in a segment that is to be used again, or is lost, are written again.
void Store::State::ClearAgain(uint32_t segment) {
  for (const auto& record : clear_records_) {
    const ClearRow& row = record.second;
    const bool there = row.place ? row.place.segment == segment : false;
    const bool running = std::any_of(clearing_.begin(), clearing_.end(), [&](const auto& c) {
      return c.second.row.space == row.space && c.second.row.sequence >= row.sequence;
    });
    if (!there || running) continue;
    OneClear clear;
    clear.row = row;
    clear.row.place = {};
    clear.again = true;
    BeginClear(std::move(clear));
  }
}

// A row that is on its way already comes before these; one of a write that isn't so far never comes.
void Store::State::Hide(uint32_t space, std::vector<ChunkId> chunks, std::function<void(absl::Status)> done) {
  keeper_->Post([this, space, chunks = std::move(chunks), done = std::move(done)] {
    CatalogBatch batch;
    for (const ChunkId& id : FreeLeft([space](const ChunkId&left, const Killed&) { return left.space == space; })) {
      if (!RowIsOnItsWay(id)) batch.Erase(id);  // a write of it that isn't so far may fail, and only then it would be erased
    }
    for (const ChunkId& id : chunks) {
      if (recovering_) touched_.insert(id);
      if (const auto running = writing_.find(id); running != writing_.end()) {
        for (const uint64_t number : running->second.running) writes_.at(number).cleared = true;
      }
      rows_since_.erase(id);
      batch.Erase(id);
    }
    Step("hide: erase");
    commits_->Add(std::move(batch), Commits::Need::kMust, [this, done, below = sequence_ + 1](const absl::Status& status) {
      status.ok() ? SettleHidden(below, done) : done(status);
      CheckCatalog();
    });
  });
}

// Their rows are gone; that no start adopts their records either is said when no write of before is without its row: were it said earlier, one that loses its
// row wouldn't be adopted. But a disk that is slow, by its rate or by itself, must not hold up whoever clears.
void Store::State::SettleHidden(uint64_t below, std::function<void(absl::Status)> done) {
  const auto settle = [this, below, done = std::move(done),
                       over = std::make_shared<bool>(false)](const absl::Status& settled) {
    if (std::exchange(*over, true)) return;
    if (!settled.ok()) return done(settled);
    CatalogBatch batch;
    batch.Settle(below);
    Step("hide: settle");
    commits_->Add(std::move(batch), Commits::Need::kMust, [this, done](const absl::Status& status) {
      done(status);
      CheckCatalog();
    });
  };
  WhenSettled(settle);
  WhenRecovered(
      [this, settle] { keeper_->PostAt(hands_.Now() + kSettleAnyway, [this, settle] { settle(*recovery_over_); }); });
}

}  // namespace kvist::ssd
