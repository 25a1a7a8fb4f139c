#include "tests/support/sim_catalog.h"

#include <algorithm>
#include <utility>

#include "storage/base/check.h"

namespace kvist::test {
namespace {

constexpr size_t kHistoryMax = 256;

// Adds the row to the batch; false: it doesn't parse.
bool AddRow(const std::string& key, const std::string& value, ssd::RowBatch* batch) {
  const auto add = [](auto parsed, auto* rows) {
    if (parsed.has_value()) rows->push_back(*std::move(parsed));
    return parsed.has_value();
  };
  switch (ssd::KindOf(key).value_or(ssd::RowKind::kMeta)) {
    case ssd::RowKind::kMeta: return false;
    case ssd::RowKind::kSpace: return add(ssd::ParseSpace(key, value), &batch->spaces);
    case ssd::RowKind::kSegment: return add(ssd::ParseSegment(key, value), &batch->segments);
    case ssd::RowKind::kClear: return add(ssd::ParseClear(key, value), &batch->clears);
    case ssd::RowKind::kPin: return add(ssd::ParsePin(key, value), &batch->pins);
    case ssd::RowKind::kChunk: return add(ssd::ParseChunk(key, value), &batch->chunks);
    case ssd::RowKind::kUse: return add(ssd::ParseUse(key, value), &batch->uses);
  }
  return false;
}

}  // namespace

class SimCatalog::Opened final : public ssd::Catalog {
 public:
  explicit Opened(SimCatalog* catalog) : catalog_(*catalog) {}
  ~Opened() override {
    while (catalog_.Step()) {}
    KVIST_CHECK(catalog_.sink_ == nullptr);
    catalog_.ended_clean_ = catalog_.broken_.ok() && !catalog_.ends_unclean_;
    catalog_.broken_ = absl::OkStatus();
    catalog_.open_ = false;
  }
  const ssd::OpenReport& report() const override { return catalog_.report(); }
  ssd::CatalogStats stats() const override { return catalog_.stats(); }
  absl::Status Commit(ssd::CatalogBatch batch, Done done) override {
    return catalog_.Commit(std::move(batch), std::move(done));
  }
  absl::Status Load(ssd::RowSink* sink) override { return catalog_.Load(sink); }
  void EndUnclean() override { catalog_.EndUnclean(); }
  void StartOver(std::string why, Done done) override { catalog_.StartOver(std::move(why), std::move(done)); }

 private:
  SimCatalog& catalog_;
};

std::unique_ptr<ssd::Catalog> SimCatalog::Open() {
  KVIST_CHECK(!open_);
  open_ = true;
  using Kind = ssd::OpenReport::Kind;
  report_.kind = report_.generation == 0 ? Kind::kNew : ended_clean_ ? Kind::kClean : Kind::kUnclean;
  ++report_.generation;
  report_.rebuild_pending = rebuild_pending_;
  report_.settled = options_.forgets_settled ? 0 : settled_;
  ended_clean_ = ends_unclean_ = false;
  seen_ = durable_;
  seen_pending_ = rebuild_pending_;
  seen_settled_ = settled_;
  differs_ = false;
  return std::make_unique<Opened>(this);
}

absl::Status SimCatalog::Commit(ssd::CatalogBatch batch, Done done) {
  if (waiting_.size() >= options_.waiting_max) return absl::ResourceExhaustedError("too many commits wait");
  if (options_.says_too_early) {
    said_.push_back(std::exchange(done, [](const absl::Status&) {}));
  }
  waiting_.push_back({std::move(batch), false, std::move(done)});
  return absl::OkStatus();
}

void SimCatalog::StartOver(std::string, Done done) { waiting_.push_back({{}, true, std::move(done)}); }

void SimCatalog::TakeBackWhatFailed() {
  if (!std::exchange(differs_, false)) return;
  durable_ = seen_;
  rebuild_pending_ = seen_pending_;
  settled_ = seen_settled_;
}

void SimCatalog::Apply(const Asked& asked, bool failed) {
  if (!failed) TakeBackWhatFailed();
  differs_ |= failed;
  // What records tell as well: a chunk without a row, and where the record of a clear lies that has a row.
  const auto records_tell = [this](const ssd::CatalogBatch::Change& change) {
    if (change.erase) return false;
    const auto before = durable_.find(std::string(change.row.key()));
    const auto kind = ssd::KindOf(change.row.key());
    if (kind == ssd::RowKind::kChunk) return before == durable_.end();
    if (kind != ssd::RowKind::kClear || before == durable_.end()) return false;
    const auto was = ssd::ParseClear(before->first, before->second),
               now = ssd::ParseClear(change.row.key(), change.row.value());
    return was.has_value() && now.has_value() && was->sequence == now->sequence;
  };
  const std::vector<ssd::CatalogBatch::Change>& changes = asked.batch.list();
  history_.push_back({durable_, rebuild_pending_, settled_,
                      !asked.start_over && !failed && !asked.batch.finishes_rebuild() && !changes.empty() &&
                          std::all_of(changes.begin(), changes.end(), records_tell)});
  if (history_.size() > kHistoryMax) history_.pop_front();
  if (asked.start_over) {
    durable_.clear();
    seen_.clear();
    rebuild_pending_ = seen_pending_ = true;
    settled_ = seen_settled_ = 0;
    differs_ = false;
    history_.clear();
    return;
  }
  settled_ = std::max(settled_, asked.batch.settled());
  if (!failed) seen_settled_ = std::max(seen_settled_, asked.batch.settled());
  for (const ssd::CatalogBatch::Change& change : changes) {
    if (change.erase) {
      if (options_.forgets_erasures) continue;
      durable_.erase(std::string(change.row.key()));
      if (!failed) seen_.erase(std::string(change.row.key()));
    } else {
      durable_[std::string(change.row.key())] = std::string(change.row.value());
      if (!failed) seen_[std::string(change.row.key())] = std::string(change.row.value());
    }
  }
  if (!asked.batch.finishes_rebuild()) return;
  rebuild_pending_ = false;
  if (!failed) seen_pending_ = false;
  ++rebuilds_;
}

bool SimCatalog::Step() {
  if (!said_.empty()) {
    for (const Done& done : std::exchange(said_, {})) done(absl::OkStatus());
    return true;
  }
  if (waiting_.empty()) return false;
  std::vector<Asked> group;
  while (!waiting_.empty() && group.size() < options_.group_max) {
    const bool alone = waiting_.front().start_over;
    if (alone && !group.empty()) break;
    group.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    if (alone) break;
  }
  absl::Status status;
  if (group.front().start_over) {
    broken_ = failing_ = absl::OkStatus();
    if (ssd::RowSink* sink = std::exchange(sink_, nullptr)) {
      load_.status = absl::CancelledError("started over");
      sink->Loaded(load_);
    }
  } else {
    status = broken_.ok() ? failing_ : broken_;
  }
  if (status.ok() || (broken_.ok() && failing_applies_)) {
    for (const Asked& asked : group) Apply(asked, !status.ok());
  }
  if (!status.ok() && !absl::IsResourceExhausted(status)) broken_ = status;
  if (status.ok()) commits_ += group.size();
  for (const Asked& asked : group) asked.done(status);
  return true;
}

absl::Status SimCatalog::Load(ssd::RowSink* sink) {
  if (sink_ != nullptr) return absl::FailedPreconditionError("the catalog is being loaded already");
  sink_ = sink;
  snapshot_ = seen_;
  loaded_to_.clear();
  load_ = {};
  return absl::OkStatus();
}

bool SimCatalog::LoadStep() {
  if (sink_ == nullptr) return false;
  ssd::RowBatch batch;
  auto row = loaded_to_.empty() ? snapshot_.begin() : snapshot_.upper_bound(loaded_to_);
  size_t in_batch = 0;
  const auto fails = [&] { return load_fails_.has_value() && load_.rows + in_batch >= load_fails_->second; };
  for (; row != snapshot_.end() && in_batch < options_.load_rows && !fails(); ++row) {
    if (!AddRow(row->first, row->second, &batch)) ++load_.skipped;
    loaded_to_ = row->first;
    in_batch = batch.rows();
  }
  load_.rows += std::exchange(in_batch, 0);
  if (batch.rows() > 0 && !sink_->Take(std::move(batch))) load_.status = absl::CancelledError("the load was ended early");
  if (load_.status.ok() && fails()) load_.status = std::exchange(load_fails_, std::nullopt)->first;
  if (row != snapshot_.end() && load_.status.ok()) return true;
  ssd::RowSink* const sink = std::exchange(sink_, nullptr);
  sink->Loaded(load_);
  return true;
}

void SimCatalog::Crash(size_t kept) {
  const bool fails = !broken_.ok() || (!failing_.ok() && !failing_applies_);
  for (size_t i = 0; i < std::min(kept, waiting_.size()) && !fails; ++i) Apply(waiting_[i]);
  waiting_.clear();
  said_.clear();
  open_ = false;
  sink_ = nullptr;
  broken_ = failing_ = absl::OkStatus();
}

void SimCatalog::Fail(absl::Status status, bool applied) {
  failing_ = std::move(status);
  failing_applies_ = applied;
}

void SimCatalog::Lose() {
  KVIST_CHECK(waiting_.empty());
  durable_.clear();
  history_.clear();
  rebuild_pending_ = true;
  settled_ = 0;
}

void SimCatalog::Age(size_t commits) {
  KVIST_CHECK(waiting_.empty());
  for (; commits > 0 && !history_.empty(); --commits) {
    Before& before = history_.back();
    durable_ = std::move(before.rows);
    rebuild_pending_ = before.rebuild_pending;
    settled_ = before.settled;
    history_.pop_back();
  }
}

size_t SimCatalog::LoseTail(size_t commits) {
  size_t lost = 0;
  if (ended_clean_) return 0;  // its end is known then
  for (; lost < commits && !history_.empty() && history_.back().records_tell_it; ++lost) Age(1);
  return lost;
}

void SimCatalog::Spoil(const std::string& key) {
  const auto row = durable_.find(key);
  if (row != durable_.end()) row->second.back() = static_cast<char>(row->second.back() ^ 1);
}

}  // namespace kvist::test
