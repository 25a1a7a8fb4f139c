#include "storage/ssd/rocks_database.h"

#include <fcntl.h>
#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/table.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"
#include "storage/ssd/rocks_manifest.h"

namespace kvist::ssd {
namespace {

namespace fs = std::filesystem;

std::string_view ViewOf(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// A database that has failed is closed and opened again (Reopen), not mended while it runs: in Debian's build, which has assertions, the
// first flush after such a recovery ends the process when a log had failed.
class NoRecoveryByItself : public rocksdb::EventListener {
 public:
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status, bool* by_itself) override {
    *by_itself = false;
  }
};

// RocksDB's own log, of a database that is only read.
class NoLog : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// Its parsers throw in front of damaged files.
template <class Open>
absl::StatusOr<std::unique_ptr<rocksdb::DB>> Opened(Open open) {
  rocksdb::DB* db = nullptr;
  try {
    KVIST_RETURN_IF_ERROR(FromRocks("opening the catalog", open(&db)));
  } catch (const std::exception& e) { return absl::DataLossError(absl::StrCat("opening the catalog: ", e.what())); }
  return std::unique_ptr<rocksdb::DB>(db);
}

}  // namespace

absl::Status FromRocks(const char* what, const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", status.ToString());
  if (status.IsNoSpace()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(message, "; free some space on the file system of the SSD tier's folder"));
  }
  if (status.IsCorruption() || status.IsNotFound() || status.IsNotSupported() || status.IsInvalidArgument())
    return absl::DataLossError(message);
  return absl::UnavailableError(message);
}

rocksdb::Options DatabaseOptions(Bytes write_buffer) {
  rocksdb::Options db;
  // Said where one is made: in a folder that has lost its CURRENT it would delete all the rest
  db.create_if_missing = false;
  // Believe nothing that doesn't add up: missing or exchanged tables and logs are noticed when it is opened, not when they are read.
  db.paranoid_checks = true;
  db.track_and_verify_wals_in_manifest = true;
  db.verify_sst_unique_id_in_manifest = true;
  db.skip_checking_sst_file_sizes_on_db_open = false;
  // Every commit is flushed, so only the last record of a log can be torn. Anything else wrong in a log is damage: the default would
  // silently end at it, and lose what was called durable.
  db.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  db.recycle_log_file_num = 0;      // an old log's records can't be taken for this one's
  db.max_bgerror_resume_count = 0;  // a failed flush isn't tried again behind our back
  db.listeners.push_back(std::make_shared<NoRecoveryByItself>());
  // Memory: two memtables, a small cache (rows are read once, at the start), and this many open tables with their indexes.
  db.write_buffer_size = write_buffer.value;
  db.max_write_buffer_number = 2;
  db.max_total_wal_size = 4 * write_buffer.value;  // what a start after a crash replays
  db.max_open_files = 64;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(MiB(4).value);
  table.block_size = KiB(16).value;  // rows are read in order: fewer index entries
  db.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  // Rows are hashes; and the format depends on no library that a package may leave out
  db.compression = rocksdb::kNoCompression;
  db.max_background_jobs = 2;
  db.enable_write_thread_adaptive_yield = false;  // one thread writes: nobody to spin for
  db.bytes_per_sync =
      MiB(1).value;             // tables go to the disk as they are written, not in one burst beside the tier's own writes
  db.allow_mmap_reads = false;  // EIO is an error that way, not a SIGBUS
  db.allow_mmap_writes = false;
  db.skip_stats_update_on_db_open = true;  // it reads every table at the start for compaction's sake
  // Its own log lies in its folder, four files of 1 MiB at most, and has what went wrong.
  db.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  db.max_log_file_size = MiB(1).value;
  db.keep_log_file_num = 4;
  db.max_manifest_file_size = MiB(4).value;
  db.stats_dump_period_sec = 0;
  db.stats_persist_period_sec = 0;
  return db;
}

absl::StatusOr<std::unique_ptr<rocksdb::DB>> OpenDatabase(const std::string& path, const rocksdb::Options& options) {
  return Opened([&](rocksdb::DB** db) { return rocksdb::DB::Open(options, path, db); });
}

absl::StatusOr<std::unique_ptr<rocksdb::DB>> OpenDatabaseToRead(const std::string& path) {
  rocksdb::Options options = DatabaseOptions(MiB(16));
  options.info_log = std::make_shared<NoLog>();
  return Opened([&](rocksdb::DB** db) { return rocksdb::DB::OpenForReadOnly(options, path, db); });
}

absl::Status DatabaseUsable(const std::string& path) {
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const std::string file = it->path().string();
    const bool lock = it->path().filename() == "LOCK";
    const UniqueFd fd(::open(file.c_str(), (lock ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_CLOEXEC));
    if (!fd &&
        (errno == EACCES || errno == EPERM || errno == EROFS || errno == EMFILE || errno == ENFILE || errno == ENOMEM))
      return ErrnoStatus(absl::StrCat("opening ", file), errno);
    struct flock held {};
    held.l_type = F_WRLCK;
    if (fd && lock && ::fcntl(fd.get(), F_GETLK, &held) == 0 && held.l_type != F_UNLCK) {
      return absl::FailedPreconditionError(absl::StrCat("process ", held.l_pid, " has the database in ", path,
                                                        " open; it must end before kvistd can use it"));
    }
  }
  return error == std::errc::permission_denied ? ErrnoStatus(absl::StrCat("listing ", path), error.value())
                                               : absl::OkStatus();
}

absl::Status FilesAreThose(const std::string& path, const std::optional<CatalogStamp>& stamp) {
  std::error_code error;
  if (!fs::is_regular_file(path + "/CURRENT", error)) return absl::DataLossError("it has no file CURRENT");
  if (!stamp.has_value() || stamp->clean != 1) return absl::OkStatus();
  KVIST_ASSIGN_OR_RETURN(const CatalogFiles files, ReadManifest(path));
  return files == stamp->files ? absl::OkStatus()
                               : absl::DataLossError("its list of files isn't what it was at the last clean end");
}

absl::StatusOr<OpenReport::Kind> KindOfCatalog(const MetaRow& meta, const std::optional<CatalogStamp>& stamp,
                                               const std::optional<StoreId>& store) {
  if (meta.format != kCatalogFormat) {
    return absl::DataLossError(absl::StrCat("it has the format ", meta.format, ", and this kvistd knows ", kCatalogFormat));
  }
  if (store.has_value() && meta.store != *store) return absl::DataLossError("it is of another store");
  const CatalogAge age = AgeOf(meta, stamp);
  if (age.kind == CatalogAge::kWrong) return absl::DataLossError(age.why);
  return age.kind == CatalogAge::kClean ? OpenReport::kClean : OpenReport::kUnclean;
}

absl::StatusOr<MetaRow> ReadMeta(rocksdb::DB* db) {
  const std::string key = MetaKey();
  std::string value;
  const rocksdb::Status got = db->Get(rocksdb::ReadOptions(), key, &value);
  const std::optional<MetaRow> meta = got.ok() ? ParseMeta(key, value) : std::nullopt;
  if (meta.has_value()) return *meta;
  return absl::DataLossError(got.ok() || got.IsNotFound() ? "it doesn't say what it is" : got.ToString());
}

LoadReport LoadRows(rocksdb::DB* db, const rocksdb::Snapshot* snapshot, RowSink* sink, absl::FunctionRef<bool()> cancelled) {
  LoadReport report;
  rocksdb::ReadOptions read;
  read.snapshot = snapshot;
  read.fill_cache = false;
  read.verify_checksums = true;
  read.readahead_size = MiB(2).value;
  const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(read));
  RowBatch batch;
  size_t in_batch = 0, uses = 0;
  const auto add = [&](auto parsed, auto* rows) {
    if (!parsed.has_value()) {
      ++report.skipped;
      return;
    }
    rows->push_back(*std::move(parsed));
    ++in_batch;
  };
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const std::string_view key = ViewOf(it->key()), value = ViewOf(it->value());
    const std::optional<RowKind> kind = KindOf(key);
    if (!kind.has_value()) {
      ++report.skipped;
      continue;
    }
    switch (*kind) {
      case RowKind::kMeta: break;
      case RowKind::kSpace: add(ParseSpace(key, value), &batch.spaces); break;
      case RowKind::kSegment: add(ParseSegment(key, value), &batch.segments); break;
      case RowKind::kClear: add(ParseClear(key, value), &batch.clears); break;
      case RowKind::kPin: add(ParsePin(key, value), &batch.pins); break;
      case RowKind::kChunk: add(ParseChunk(key, value), &batch.chunks); break;
      case RowKind::kUse: {
        std::optional<UseRow> row = ParseUse(key, value);
        uses += row.has_value() ? row->chunks.size() : 0;
        add(std::move(row), &batch.uses);
        break;
      }
    }
    if (in_batch + uses < Catalog::kLoadRows) continue;
    uses = 0;
    report.rows += std::exchange(in_batch, 0);
    if (cancelled() || !sink->Take(std::exchange(batch, {}))) {
      report.status = absl::CancelledError("the load was ended early");
      return report;
    }
  }
  report.rows += in_batch;
  if (in_batch > 0 && !sink->Take(std::move(batch))) report.status = absl::CancelledError("the load was ended early");
  if (!it->status().ok()) report.status = FromRocks("loading the catalog", it->status());
  return report;
}

}  // namespace kvist::ssd
