#include "tests/bench/catalog.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"
#include "storage/ssd/rocks_catalog.h"
#include "tests/bench/slices.h"
#include "tests/support/temp_dir.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kChunks = 1'000'000;
constexpr uint32_t kQuickChunks = 20'000;
constexpr double kAskedFirstSeconds = 1, kAskedAllSeconds = 5;  // from the issue: first hit, all
constexpr uint32_t kRowsOfCommit = 64;                          // what a store of a request makes durable
constexpr uint32_t kCommitsOfSlice = 200;

ssd::ChunkRow RandomRow(std::mt19937_64& random) {
  ssd::ChunkRow row;
  row.id.position = static_cast<uint32_t>(random() % 512);
  for (size_t at = 0; at < sizeof row.id.key.bytes; at += 8) {
    const uint64_t word = random();
    std::memcpy(row.id.key.bytes.data() + at, &word, sizeof word);
  }
  row.parent = row.id.key;
  row.sequence = random();
  row.places.push_back({static_cast<uint32_t>(random() % 1000), 1 + static_cast<uint32_t>(random() % 100'000)});
  return row;
}

struct Sink : ssd::RowSink {
  double first = 0;
  absl::Notification ended;
  ssd::LoadReport report;
  bool Take(ssd::RowBatch) override {
    if (first == 0) first = Now();
    return true;
  }
  void Loaded(const ssd::LoadReport& r) override {
    report = r;
    ended.Notify();
  }
};

absl::StatusOr<std::unique_ptr<ssd::RocksCatalog>> Open(const std::string& folder) {
  ssd::RocksCatalogOptions options;
  options.folder = folder;
  return ssd::RocksCatalog::Open(options);
}

// Commits so many rows, kRowsOfCommit at a time, as fast as they are taken; waits for the last.
absl::Status Commit(ssd::Catalog* catalog, uint32_t rows, std::mt19937_64& random) {
  std::atomic<uint32_t> failed{0};
  absl::Notification flushed;
  for (uint32_t row = 0; row < rows;) {
    ssd::CatalogBatch batch;
    for (uint32_t i = 0; i < kRowsOfCommit && row < rows; ++i, ++row) batch.Put(RandomRow(random));
    const bool last = row == rows;
    absl::Status taken;
    do {
      taken = catalog->Commit(batch, [&failed, &flushed, last](const absl::Status& status) {
        failed += status.ok() ? 0 : 1;
        if (last) flushed.Notify();
      });
    } while (absl::IsResourceExhausted(taken));
    KVIST_RETURN_IF_ERROR(taken);
  }
  flushed.WaitForNotification();
  return failed == 0 ? absl::OkStatus() : absl::InternalError(absl::StrCat(failed.load(), " commits failed"));
}

// The limit: everything that is there, read by RocksDB and looked at by nobody.
absl::StatusOr<double> IteratePlainly(const std::string& folder) {
  const double start = Now();
  rocksdb::DB* opened = nullptr;
  rocksdb::Status status = rocksdb::DB::OpenForReadOnly(rocksdb::Options(), folder + "/catalog", &opened);
  if (!status.ok()) return absl::InternalError(status.ToString());
  const std::unique_ptr<rocksdb::DB> db(opened);
  rocksdb::ReadOptions read;
  read.readahead_size = 2 << 20;
  const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(read));
  uint64_t bytes = 0;
  for (it->SeekToFirst(); it->Valid(); it->Next()) bytes += it->key().size() + it->value().size();
  if (!it->status().ok() || bytes == 0) return absl::InternalError("the plain iteration found nothing");
  return Now() - start;
}

}  // namespace

absl::Status RunCatalog(const Settings& settings, Report* report) {
  const kvist::test::TempDir dir;
  const std::string folder = dir / "ssd";
  const uint32_t chunks = settings.quick ? kQuickChunks : kChunks;
  std::mt19937_64 random(1);
  {
    KVIST_ASSIGN_OR_RETURN(const auto catalog, Open(folder));
    KVIST_RETURN_IF_ERROR(Commit(catalog.get(), chunks, random));
  }

  std::vector<double> firsts;
  const Slice load = [&]() -> absl::StatusOr<double> {
    const double start = Now();
    KVIST_ASSIGN_OR_RETURN(const auto catalog, Open(folder));
    Sink sink;
    KVIST_RETURN_IF_ERROR(catalog->Load(&sink));
    sink.ended.WaitForNotification();
    const double seconds = Now() - start;
    KVIST_RETURN_IF_ERROR(sink.report.status);
    if (sink.report.rows != chunks || sink.report.skipped != 0)
      return absl::InternalError(absl::StrCat("loaded ", sink.report.rows, " of ", chunks, " rows"));
    firsts.push_back(sink.first - start);
    return seconds;
  };
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> loads,
                         Alternate(settings.time / 2, load, [&] { return IteratePlainly(folder); }));
  const Pair middle = MedianByRatio(loads);
  const std::string many = settings.quick ? "20 k chunks" : "1 M chunks";
  report->cases.push_back({absl::StrCat(many, ", opening to the first rows"), Quantile(firsts, 0.5), "s", kAskedFirstSeconds,
                           Better::kLower, 1});
  report->cases.push_back(
      {absl::StrCat(many, ", opening to all rows"), middle.product, "s", kAskedAllSeconds, Better::kLower, 1});
  report->cases.push_back(
      {absl::StrCat(many, ", beside plain iteration"), middle.product, "s", middle.limit, Better::kLower, std::nullopt});

  const uint32_t commits = settings.quick ? 10 : kCommitsOfSlice;
  KVIST_ASSIGN_OR_RETURN(const auto catalog, Open(dir / "commits"));
  const UniqueFd file(::open((dir / "appended").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const ssd::EncodedRow row = Encode(RandomRow(random));
  const std::string bytes(kRowsOfCommit * row.bytes.size(), 'x');
  // One after the other, so that nothing is grouped: what a store waits for.
  const Slice alone = [&]() -> absl::StatusOr<double> {
    const double start = Now();
    for (uint32_t i = 0; i < commits; ++i) KVIST_RETURN_IF_ERROR(Commit(catalog.get(), kRowsOfCommit, random));
    return (Now() - start) / commits * 1e6;
  };
  const Slice append = [&]() -> absl::StatusOr<double> {
    const double start = Now();
    for (uint32_t i = 0; i < commits; ++i) {
      if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) ||
          ::fdatasync(file.get()) != 0)
        return ErrnoStatus("appending to a file", errno);
    }
    return (Now() - start) / commits * 1e6;
  };
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> waits, Alternate(settings.time / 4, alone, append));
  const Pair wait = MedianByRatio(waits);
  report->cases.push_back({"commit of 64 rows, flushed", wait.product, "us", wait.limit, Better::kLower, std::nullopt});

  // As many as there are, so that groups come about.
  const Slice many_at_once = [&]() -> absl::StatusOr<double> {
    const double start = Now();
    KVIST_RETURN_IF_ERROR(Commit(catalog.get(), kRowsOfCommit * commits, random));
    return kRowsOfCommit * commits / (Now() - start);
  };
  const Slice one_by_one = [&]() -> absl::StatusOr<double> {
    KVIST_ASSIGN_OR_RETURN(const double micros, alone());
    return kRowsOfCommit / micros * 1e6;
  };
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> rates, Alternate(settings.time / 4, many_at_once, one_by_one));
  const Pair rate = MedianByRatio(rates);
  report->cases.push_back(
      {"rows committed in groups, beside one by one", rate.product, "1/s", rate.limit, Better::kHigher, std::nullopt});
  return absl::OkStatus();
}

}  // namespace kvist::bench
