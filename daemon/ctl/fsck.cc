#include "daemon/ctl/fsck.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/ctl/human.h"
#include "daemon/ctl/job_progress.h"
#include "daemon/ctl/table.h"
#include "daemon/ctl/wrap.h"

namespace kvist::ctl {
namespace {

using ssd::FsckReport;

constexpr size_t kLabelColumn = 10;

std::string Line(absl::string_view label, absl::string_view text, size_t columns) {
  const std::string front = absl::StrCat(label, std::string(kLabelColumn - label.size(), ' '));
  return absl::StrCat(Wrap(absl::StrCat(front, Printable(text)), columns, kLabelColumn, kLabelColumn), "\n");
}

// ", 3 fenced"; nothing for none.
std::string And(uint64_t count, absl::string_view what) {
  return count == 0 ? "" : absl::StrCat(", ", HumanCount(count), " ", what);
}

std::string Segments(const FsckReport& report) {
  return absl::StrCat(HumanCount(report.segments), " of ", HumanBytes(report.segment_bytes),
                      And(report.segments_unused, "never used"), And(report.segments_damaged, "with damaged headers"),
                      And(report.segments_fenced, "given up after errors of the disk"),
                      And(report.segments_missing, "more in a directory that has none: is its file system mounted?"));
}

std::string Records(const FsckReport& report) {
  return absl::StrCat(HumanCount(report.records), " read (", HumanBytes(report.bytes_read), " in ",
                      HumanDuration(report.elapsed), ")", And(report.bad_records, "not as they were written"),
                      And(report.gaps, "gaps where a header is damaged"),
                      And(report.unreadable, "places that the disk doesn't give, the first: "), report.why_unreadable);
}

std::string Catalog(const FsckReport& report) {
  if (!report.catalog_trouble.empty()) return report.catalog_trouble;
  if (report.rebuild_pending) return "not complete: the next start of kvistd reads all headers";
  const ssd::CatalogCheck& check = report.catalog;
  return absl::StrCat(HumanCount(check.rows), " chunks", And(check.broken, "lead to no good record"),
                      And(check.misplaced, "hang in the wrong place"),
                      And(check.unread, "lead to segments that couldn't be read"),
                      And(report.rows_skipped, "rows that say nothing"),
                      And(report.clears_missing, "clears unknown to it: it is an older copy"),
                      And(check.unlisted, "more lie on the disk without a row, which is no fault"));
}

std::string Verdict(const FsckReport& report) {
  if (report.repaired && report.rebuild_pending)
    return "repaired: the next start of kvistd rebuilds the catalog from the records";
  if (report.repaired && report.catalog.unread > 0) return "repaired but for what couldn't be read";
  if (report.repaired && !report.sound()) return "repaired: the catalog leads to good records only";
  if (!report.sound()) return "not sound: `kvistctl fsck --repair` mends the catalog; what is lost will be computed again";
  return report.unclean ? "sound; kvistd was killed, and its next start looks for what it was writing then" : "sound";
}

}  // namespace

std::string ToTable(const FsckReport& report, size_t columns) {
  std::string text = Line("segments", Segments(report), columns) + Line("records", Records(report), columns) +
                     Line("catalog", Catalog(report), columns);
  if (!report.store_file.empty())
    text += Line("store", absl::StrCat("the file \"store\" is lost in ", report.store_file), columns);
  for (const ssd::BadRecord& bad : report.examples) {
    text += Line("bad",
                 absl::StrCat(bad.file, " at ", ssd::OffsetOf(bad.place).value, ": ", ssd::NameOf(bad.verdict),
                              bad.wanted ? "" : ", and nothing leads there"),
                 columns);
  }
  return text + Line("", Verdict(report), columns);
}

std::string ToJson(const FsckReport& report) {
  nlohmann::ordered_json json = {{"sound", report.sound()},
                                 {"repaired", report.repaired},
                                 {"unclean", report.unclean},
                                 {"rebuild_pending", report.rebuild_pending},
                                 {"segment_bytes", report.segment_bytes.value},
                                 {"segments", report.segments},
                                 {"segments_unused", report.segments_unused},
                                 {"segments_damaged", report.segments_damaged},
                                 {"segments_fenced", report.segments_fenced},
                                 {"segments_missing", report.segments_missing},
                                 {"records", report.records},
                                 {"bytes_read", report.bytes_read.value},
                                 {"seconds", absl::ToDoubleSeconds(report.elapsed)},
                                 {"bad_records", report.bad_records},
                                 {"gaps", report.gaps},
                                 {"unreadable", report.unreadable},
                                 {"why_unreadable", report.why_unreadable},
                                 {"store_file_lost_in", report.store_file},
                                 {"catalog_trouble", report.catalog_trouble},
                                 {"clears_missing", report.clears_missing},
                                 {"chunks", report.catalog.rows},
                                 {"chunks_good", report.catalog.good},
                                 {"chunks_broken", report.catalog.broken},
                                 {"chunks_misplaced", report.catalog.misplaced},
                                 {"chunks_unread", report.catalog.unread},
                                 {"rows_skipped", report.rows_skipped},
                                 {"chunks_unlisted", report.catalog.unlisted},
                                 {"examples", nlohmann::json::array()}};
  for (const ssd::BadRecord& bad : report.examples) {
    json["examples"].push_back({{"file", bad.file},
                                {"offset", ssd::OffsetOf(bad.place).value},
                                {"verdict", ssd::NameOf(bad.verdict)},
                                {"wanted", bad.wanted}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

ExitCode RunFsck(const FsckArguments& arguments, const Terminal& terminal) {
  std::optional<JobProgress> progress;
  if (!arguments.json) progress.emplace(terminal);
  ssd::FsckOptions options;
  options.directories = arguments.directories;
  options.repair = arguments.repair;
  uint64_t shown = UINT64_MAX;  // a record may be small, and a terminal is slow
  options.progress = [&](const ssd::FsckProgress& now) {
    const uint64_t gibibytes = now.bytes_read / GiB(1);
    if (progress.has_value() && gibibytes + now.segments_read != shown) {
      shown = gibibytes + now.segments_read;
      progress->Show("fsck", "fsck", static_cast<double>(now.segments_read) / static_cast<double>(now.segments),
                     absl::StrCat(HumanBytes(now.bytes_read), " read"));
    }
    return !terminal.wait || terminal.wait(absl::ZeroDuration());
  };
  const absl::StatusOr<FsckReport> report = ssd::Fsck(options);
  progress.reset();
  if (!report.ok()) {
    terminal.err << "kvistctl: fsck: " << report.status().message() << "\n";
    return kUnavailable;
  }
  const std::optional<Terminal::Size> size = terminal.size ? terminal.size() : std::nullopt;
  terminal.out << (arguments.json ? ToJson(*report) : ToTable(*report, size.has_value() ? size->columns : SIZE_MAX));
  return report->sound() || (report->repaired && report->catalog.unread == 0) ? kOk : kRefused;
}

}  // namespace kvist::ctl
