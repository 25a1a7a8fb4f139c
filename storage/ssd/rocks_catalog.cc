#include "storage/ssd/rocks_catalog.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>
#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/check.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"
#include "storage/ssd/catalog_stamp.h"
#include "storage/ssd/collected_rows.h"
#include "storage/ssd/directory.h"
#include "storage/ssd/rocks_database.h"
#include "storage/ssd/rocks_manifest.h"

namespace kvist::ssd {
namespace {

namespace fs = std::filesystem;

template <class T>
T Drawn() {
  T drawn;
  KVIST_CHECK(::getrandom(&drawn, sizeof drawn, 0) == sizeof drawn);
  return drawn;
}

}  // namespace

absl::Status RocksCatalogOptions::Validate() const {
  if (folder.empty()) return absl::InvalidArgumentError("folder: is empty");
  if (waiting_batches_max == 0) return absl::InvalidArgumentError("waiting_batches_max: must be at least 1");
  if (write_buffer < KiB(64)) return absl::InvalidArgumentError("write_buffer: must be at least 64 KiB");
  return absl::OkStatus();
}

class RocksCatalog::State {
 public:
  explicit State(RocksCatalogOptions options) : options_(std::move(options)), path_(options_.folder + "/catalog") {}
  ~State();

  absl::Status Open();
  const OpenReport& report() const { return report_; }
  CatalogStats stats() const {
    const absl::MutexLock lock(&mutex_);
    CatalogStats stats = stats_;
    stats.waiting = waiting_.size();
    return stats;
  }
  absl::Status Commit(CatalogBatch batch, Done done);
  absl::Status Load(RowSink* sink);
  void EndUnclean() { ends_unclean_.store(true, std::memory_order_relaxed); }
  void StartOver(std::string why, Done done);

 private:
  struct Asked {
    CatalogBatch batch;
    std::optional<std::string> start_over;  // why; then there is no batch
    Done done;
  };

  void Step(std::string_view step) const {
    if (options_.before_step) options_.before_step(step);
  }
  std::string stamp_path() const { return path_ + ".stamp"; }

  // Opening and making; before the threads, then on the committer.
  absl::Status OpenExisting(const std::optional<CatalogStamp>& stamp);
  absl::Status Create(const StoreId& store);
  absl::StatusOr<std::string> SetAside(std::string_view why);  // in words what was done
  absl::Status WriteMeta(const MetaRow& meta, rocksdb::WriteBatch* rows);

  // The committer.
  void CommitAll();
  std::vector<Asked> NextGroup() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteGroup(const std::vector<Asked>& group);
  absl::StatusOr<rocksdb::WriteBatch> RowsNow(const std::vector<Asked>& group);
  absl::Status Reopen();
  void Break(const absl::Status& status);
  absl::Status Replace(std::string_view why);

  // The loader.
  void LoadAll();
  bool Cancelled() const { return cancel_load_.load(std::memory_order_relaxed); }

  const RocksCatalogOptions options_;
  const std::string path_;
  UniqueFd lock_;
  OpenReport report_;  // doesn't change once Open has returned

  // The committer's, and Open's and the destructor's while there is none. The loader uses db_ while loading_.
  std::unique_ptr<rocksdb::DB> db_;
  MetaRow meta_;
  absl::Status broken_;                     // why nothing is committed any more
  bool full_ = false;                       // the last group found no space
  rocksdb::WriteBatch undo_;                // while full_: the rows that it would have changed, as they were
  bool failed_ = false;                     // a group did, so this life's end isn't called clean
  std::atomic<bool> ends_unclean_ = false;  // nor if it was asked for

  mutable absl::Mutex mutex_;
  absl::CondVar asked_;  // the committer waits for something to do, or ending_
  absl::CondVar loads_;  // the loader waits for a sink, or ending_; the committer for the end of a load
  std::deque<Asked> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool replacing_ ABSL_GUARDED_BY(mutex_) = false;
  bool loading_ ABSL_GUARDED_BY(mutex_) = false;
  RowSink* sink_ ABSL_GUARDED_BY(mutex_) = nullptr;
  const rocksdb::Snapshot* snapshot_ ABSL_GUARDED_BY(mutex_) = nullptr;
  CatalogStats stats_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> cancel_load_ = false;  // only asks: what was loaded until it is seen is as good

  std::thread committer_;
  std::thread loader_;
};

absl::Status RocksCatalog::State::Open() {
  KVIST_RETURN_IF_ERROR(options_.Validate());
  KVIST_RETURN_IF_ERROR(MakeDirectory(options_.folder));
  KVIST_ASSIGN_OR_RETURN(lock_, LockFile(path_ + ".lock"));
  KVIST_ASSIGN_OR_RETURN(const std::optional<CatalogStamp> stamp, ReadStamp(stamp_path()));
  std::error_code error;
  const bool there = fs::symlink_status(path_, error).type() != fs::file_type::not_found;
  absl::Status found = absl::NotFoundError("");
  if (there) {
    KVIST_RETURN_IF_ERROR(DatabaseUsable(path_));
    found = OpenExisting(stamp);
    if (!found.ok() && !absl::IsDataLoss(found) && !absl::IsUnavailable(found)) return found;
  } else if (stamp.has_value()) {
    found = absl::DataLossError("it is gone");
  }
  if (!found.ok()) {
    if (!absl::IsNotFound(found)) {
      KVIST_ASSIGN_OR_RETURN(report_.message, SetAside({found.message().data(), found.message().size()}));
      report_.kind = OpenReport::kSetAside;
    }
    KVIST_RETURN_IF_ERROR(Create(options_.store.has_value() ? *options_.store
                                 : stamp.has_value()        ? stamp->store
                                                            : Drawn<StoreId>()));
  }
  report_.store = meta_.store;
  report_.generation = meta_.generation;
  report_.rebuild_pending = meta_.rebuild_pending;
  report_.settled = meta_.settled;
  report_.quarantined = Quarantined(path_);
  committer_ = std::thread([this] { CommitAll(); });
  loader_ = std::thread([this] { LoadAll(); });
  return absl::OkStatus();
}

absl::Status RocksCatalog::State::OpenExisting(const std::optional<CatalogStamp>& stamp) {
  KVIST_RETURN_IF_ERROR(FilesAreThose(path_, stamp));
  if (stamp.has_value() && stamp->clean == 1) {
    // Opening it changes the list: from here on a crash is one.
    CatalogStamp unclean = *stamp;
    unclean.clean = 0;
    unclean.files = {};
    Step("open: no longer clean");
    KVIST_RETURN_IF_ERROR(WriteStamp(stamp_path(), unclean));
  }
  Step("open: database");
  KVIST_ASSIGN_OR_RETURN(db_, OpenDatabase(path_, DatabaseOptions(options_.write_buffer)));
  KVIST_ASSIGN_OR_RETURN(meta_, ReadMeta(db_.get()));
  KVIST_ASSIGN_OR_RETURN(report_.kind, KindOfCatalog(meta_, stamp, options_.store));
  ++meta_.generation;
  rocksdb::WriteBatch rows;
  Step("open: generation");
  KVIST_RETURN_IF_ERROR(WriteMeta(meta_, &rows));
  Step("open: stamp");
  return WriteStamp(stamp_path(), StampOf(meta_, std::nullopt));
}

// Made under another name, and given its own when it says what it is: a crash leaves none, or a whole one. An older stamp goes first:
// it is none of this one's.
absl::Status RocksCatalog::State::Create(const StoreId& store) {
  KVIST_RETURN_IF_ERROR(RemoveStamp(stamp_path()));
  const std::string made = path_ + ".new";
  std::error_code error;
  fs::remove_all(made, error);
  if (error) return ErrnoStatus(absl::StrCat("removing ", made), error.value());
  Step("create: database");
  rocksdb::Options options = DatabaseOptions(options_.write_buffer);
  options.create_if_missing = true;
  options.error_if_exists = true;
  KVIST_RETURN_IF_ERROR(
      MakeDirectory(made));  // before RocksDB does, which would let others in: it holds the segments' secrets
  KVIST_ASSIGN_OR_RETURN(db_, OpenDatabase(made, options));
  meta_ = {
      .rebuild_pending = true, .format = kCatalogFormat, .store = store, .incarnation = Drawn<uint64_t>(), .generation = 1};
  rocksdb::WriteBatch rows;
  Step("create: meta");
  KVIST_RETURN_IF_ERROR(WriteMeta(meta_, &rows));
  KVIST_RETURN_IF_ERROR(FromRocks("closing the new catalog", db_->Close()));
  db_.reset();
  Step("create: name");
  if (std::rename(made.c_str(), path_.c_str()) != 0) return ErrnoStatus(absl::StrCat("renaming ", made), errno);
  KVIST_RETURN_IF_ERROR(SyncDirectoryOf(path_));
  Step("create: open");
  KVIST_ASSIGN_OR_RETURN(db_, OpenDatabase(path_, DatabaseOptions(options_.write_buffer)));
  Step("create: stamp");
  return WriteStamp(stamp_path(), StampOf(meta_, std::nullopt));
}

absl::StatusOr<std::string> RocksCatalog::State::SetAside(std::string_view why) {
  db_.reset();
  Step("set aside: move");
  KVIST_ASSIGN_OR_RETURN(const std::string to, Quarantine(path_, options_.quarantines_max));
  {
    const absl::MutexLock lock(&mutex_);
    ++stats_.set_aside;
  }
  return absl::StrCat("the SSD tier's catalog can't be used: ", absl::string_view(why.data(), why.size()),
                      to.empty() ? std::string() : absl::StrCat("; it was moved to ", to));
}

absl::Status RocksCatalog::State::WriteMeta(const MetaRow& meta, rocksdb::WriteBatch* rows) {
  const EncodedRow row = Encode(meta);
  rocksdb::Status status = rows->Put(SliceOf(row.key()), SliceOf(row.value()));
  rocksdb::WriteOptions write;
  write.sync = true;
  if (status.ok()) status = db_->Write(write, rows);
  return FromRocks("committing to the catalog", status);
}

RocksCatalog::State::~State() {
  if (!committer_.joinable()) return;  // it wasn't opened
  {
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
    cancel_load_.store(true, std::memory_order_relaxed);
    asked_.Signal();
    loads_.SignalAll();
  }
  committer_.join();
  loader_.join();
  if (db_ == nullptr) return;
  Step("close: database");
  const rocksdb::Status closed = db_->Close();
  db_.reset();
  if (!closed.ok() || !broken_.ok() || full_ || failed_ || ends_unclean_) return;  // the stamp stays that of a crash
  const absl::StatusOr<CatalogFiles> files = ReadManifest(path_);
  if (!files.ok()) return;  // likewise
  Step("close: stamp");
  WriteStamp(stamp_path(), StampOf(meta_, *files)).IgnoreError();  // likewise
}

absl::Status RocksCatalog::State::Commit(CatalogBatch batch, Done done) {
  const absl::MutexLock lock(&mutex_);
  if (waiting_.size() >= options_.waiting_batches_max ||
      (!waiting_.empty() && waiting_bytes_ + batch.bytes() > options_.waiting_bytes_max.value)) {
    return absl::ResourceExhaustedError(absl::StrCat(waiting_.size(), " commits wait for the catalog's disk"));
  }
  waiting_bytes_ += batch.bytes();
  waiting_.push_back({std::move(batch), std::nullopt, std::move(done)});
  asked_.Signal();
  return absl::OkStatus();
}

void RocksCatalog::State::StartOver(std::string why, Done done) {
  const absl::MutexLock lock(&mutex_);
  waiting_.push_back({{}, std::move(why), std::move(done)});
  asked_.Signal();
}

std::vector<RocksCatalog::State::Asked> RocksCatalog::State::NextGroup() {
  std::vector<Asked> group;
  uint64_t bytes = 0;
  while (!waiting_.empty()) {
    Asked& next = waiting_.front();
    const bool alone = next.start_over.has_value();
    if (!group.empty() && (alone || bytes + next.batch.bytes() > options_.group_bytes_max.value)) break;
    bytes += next.batch.bytes();
    waiting_bytes_ -= next.batch.bytes();
    group.push_back(std::move(next));
    waiting_.pop_front();
    if (alone) break;
  }
  return group;
}

void RocksCatalog::State::CommitAll() {
  for (;;) {
    std::vector<Asked> group;
    {
      const absl::MutexLock lock(&mutex_);
      while (waiting_.empty() && !ending_) asked_.Wait(&mutex_);
      if (waiting_.empty()) return;
      group = NextGroup();
    }
    const bool replace = group.front().start_over.has_value();
    const absl::Status status = replace ? Replace(*group.front().start_over) : WriteGroup(group);
    failed_ = replace ? !status.ok() : failed_ || !status.ok();
    if (!replace) {
      const absl::MutexLock lock(&mutex_);
      stats_.groups += status.ok() ? 1 : 0;
      (status.ok() ? stats_.commits : stats_.failed) += group.size();
    }
    Step("commit: done");
    for (const Asked& asked : group) asked.done(status);
  }
}

absl::Status RocksCatalog::State::WriteGroup(const std::vector<Asked>& group) {
  if (!broken_.ok()) return broken_;
  std::error_code error;
  const fs::space_info space = fs::space(path_, error);
  if (!error &&
      space.available < 2 * options_.write_buffer.value) {  // rather not find out what its background work does then
    return absl::ResourceExhaustedError(absl::StrCat("the file system of ", path_, " has less than ",
                                                     2 * options_.write_buffer.value,
                                                     " bytes left, which the catalog wants; free some space"));
  }
  if (full_) KVIST_RETURN_IF_ERROR(Reopen());
  rocksdb::WriteBatch rows;
  rocksdb::Status added;
  MetaRow after = meta_;
  for (const Asked& asked : group) {
    for (const CatalogBatch::Change& change : asked.batch.list()) {
      if (added.ok())
        added = change.erase ? rows.Delete(SliceOf(change.row.key()))
                             : rows.Put(SliceOf(change.row.key()), SliceOf(change.row.value()));
    }
    ++after.commits;
    if (asked.batch.finishes_rebuild()) after.rebuild_pending = false;
    after.settled = std::max(after.settled, asked.batch.settled());
  }
  Step("commit: write");
  absl::Status status = added.ok() ? WriteMeta(after, &rows) : FromRocks("collecting rows", added);
  if (status.ok()) {
    meta_ = after;
    return status;
  }
  if (absl::IsResourceExhausted(status)) {  // the log may have it all the same, the memtable hasn't
    absl::StatusOr<rocksdb::WriteBatch> now = RowsNow(group);
    if (now.ok()) {
      undo_ = *std::move(now);
      full_ = true;
      return status;
    }
    status = now.status();
  }
  Break(status);
  return status;
}

// A batch that leaves each row that the group would change as it is.
absl::StatusOr<rocksdb::WriteBatch> RocksCatalog::State::RowsNow(const std::vector<Asked>& group) {
  rocksdb::WriteBatch rows;
  std::string value;
  for (const Asked& asked : group) {
    for (const CatalogBatch::Change& change : asked.batch.list()) {
      const rocksdb::Slice key = SliceOf(change.row.key());
      const rocksdb::Status got = db_->Get(rocksdb::ReadOptions(), key, &value);
      if (!got.ok() && !got.IsNotFound()) return FromRocks("reading the rows that a failed commit would change", got);
      KVIST_RETURN_IF_ERROR(FromRocks("collecting rows", got.ok() ? rows.Put(key, value) : rows.Delete(key)));
    }
  }
  return rows;
}

absl::Status RocksCatalog::State::Reopen() {
  {
    const absl::MutexLock lock(&mutex_);
    if (loading_) return absl::ResourceExhaustedError("the catalog's disk was full; it goes on when the load has ended");
    replacing_ = true;
  }
  db_.reset();
  const absl::Status status = [this]() -> absl::Status {
    KVIST_ASSIGN_OR_RETURN(db_, OpenDatabase(path_, DatabaseOptions(options_.write_buffer)));
    KVIST_ASSIGN_OR_RETURN(const MetaRow found, ReadMeta(db_.get()));
    if (found.incarnation != meta_.incarnation || found.commits < meta_.commits)
      return absl::DataLossError("the catalog isn't what it was before its disk was full");
    if (found.commits == meta_.commits) {
      undo_.Clear();
      return absl::OkStatus();
    }
    // What failed is in it all the same. It goes again before anything later comes: what its rows lead to isn't kept.
    Step("reopen: undo");
    MetaRow undone = meta_;
    undone.commits = found.commits;
    rocksdb::WriteBatch rows = undo_;
    KVIST_RETURN_IF_ERROR(WriteMeta(undone, &rows));
    meta_ = undone;
    undo_.Clear();
    return absl::OkStatus();
  }();
  full_ = absl::IsResourceExhausted(status);
  if (!status.ok() && !full_) Break(status);
  const absl::MutexLock lock(&mutex_);
  replacing_ = !status.ok();  // then there is nothing to load from
  return status;
}

void RocksCatalog::State::Break(const absl::Status& status) {
  broken_ =
      absl::Status(status.code(), absl::StrCat("the catalog takes no more commits since one failed: ", status.message()));
}

absl::Status RocksCatalog::State::Replace(std::string_view why) {
  {
    const absl::MutexLock lock(&mutex_);
    replacing_ = true;
    cancel_load_.store(true, std::memory_order_relaxed);
    while (loading_) loads_.Wait(&mutex_);
  }
  const StoreId store = meta_.store;
  absl::Status status = SetAside(why).status();
  if (status.ok()) status = Create(store);
  broken_ = status;
  full_ = false;
  const absl::MutexLock lock(&mutex_);
  replacing_ = !status.ok();  // there is nothing to load from
  cancel_load_.store(ending_, std::memory_order_relaxed);
  return status;
}

absl::Status RocksCatalog::State::Load(RowSink* sink) {
  {
    const absl::MutexLock lock(&mutex_);
    if (loading_) return absl::FailedPreconditionError("the catalog is being loaded already");
    if (replacing_ || ending_)
      return absl::FailedPreconditionError("the catalog is being replaced or closed, or its disk is full");
    loading_ = true;  // from here on db_ stays
  }
  const rocksdb::Snapshot* const snapshot = db_->GetSnapshot();
  const absl::MutexLock lock(&mutex_);
  snapshot_ = snapshot;
  sink_ = sink;
  loads_.SignalAll();
  return absl::OkStatus();
}

void RocksCatalog::State::LoadAll() {
  for (;;) {
    RowSink* sink = nullptr;
    const rocksdb::Snapshot* snapshot = nullptr;
    {
      const absl::MutexLock lock(&mutex_);
      while (sink_ == nullptr && (!ending_ || loading_)) loads_.Wait(&mutex_);
      if (sink_ == nullptr) return;
      sink = std::exchange(sink_, nullptr);
      snapshot = std::exchange(snapshot_, nullptr);
    }
    const LoadReport report = LoadRows(db_.get(), snapshot, sink, [this] { return Cancelled(); });
    db_->ReleaseSnapshot(snapshot);
    {
      const absl::MutexLock lock(&mutex_);
      stats_.skipped += report.skipped;
      loading_ = false;
      loads_.SignalAll();
    }
    sink->Loaded(report);
  }
}

absl::StatusOr<UniqueFd> LockCatalog(const std::string& folder) {
  const std::string lock = folder + "/catalog.lock";
  std::error_code error;
  if (!fs::exists(lock, error)) return UniqueFd();
  return LockFile(lock);
}

absl::StatusOr<CatalogAtRest> ReadCatalog(const std::string& folder, const StoreId& store) {
  const std::string path = folder + "/catalog";
  CatalogAtRest found;
  std::error_code error;
  KVIST_ASSIGN_OR_RETURN(const std::optional<CatalogStamp> stamp, ReadStamp(path + ".stamp"));
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found && !stamp.has_value()) return found;
  const absl::Status status = [&]() -> absl::Status {
    KVIST_RETURN_IF_ERROR(DatabaseUsable(path));
    KVIST_RETURN_IF_ERROR(FilesAreThose(path, stamp));
    KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<rocksdb::DB> db, OpenDatabaseToRead(path));
    KVIST_ASSIGN_OR_RETURN(const MetaRow meta, ReadMeta(db.get()));
    KVIST_ASSIGN_OR_RETURN(found.kind, KindOfCatalog(meta, stamp, store));
    found.rebuild_pending = meta.rebuild_pending;
    found.generation = meta.generation;
    CollectedRows rows(CollectedRows::Which::kAll);
    const LoadReport report = LoadRows(db.get(), nullptr, &rows, [] { return false; });
    KVIST_RETURN_IF_ERROR(report.status);
    found.rows = std::move(rows.rows);
    found.skipped = report.skipped;
    return absl::OkStatus();
  }();
  if (!status.ok() && !absl::IsDataLoss(status) && !absl::IsUnavailable(status)) return status;
  if (!status.ok()) {
    found.kind = OpenReport::kSetAside;
    found.trouble = std::string(status.message());
    found.rebuild_pending = true;
  }
  return found;
}

RocksCatalog::RocksCatalog(std::unique_ptr<State> state) : state_(std::move(state)) {}
RocksCatalog::~RocksCatalog() = default;

absl::StatusOr<std::unique_ptr<RocksCatalog>> RocksCatalog::Open(RocksCatalogOptions options) {
  auto state = std::make_unique<State>(std::move(options));
  KVIST_RETURN_IF_ERROR(state->Open());
  return std::unique_ptr<RocksCatalog>(new RocksCatalog(std::move(state)));
}

const OpenReport& RocksCatalog::report() const { return state_->report(); }
CatalogStats RocksCatalog::stats() const { return state_->stats(); }
absl::Status RocksCatalog::Commit(CatalogBatch batch, Done done) {
  return state_->Commit(std::move(batch), std::move(done));
}
void RocksCatalog::EndUnclean() { state_->EndUnclean(); }
absl::Status RocksCatalog::Load(RowSink* sink) { return state_->Load(sink); }
void RocksCatalog::StartOver(std::string why, Done done) { state_->StartOver(std::move(why), std::move(done)); }

}  // namespace kvist::ssd
