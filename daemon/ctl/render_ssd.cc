// `kvistctl ssd` for people.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "daemon/ctl/human.h"
#include "daemon/ctl/render.h"
#include "daemon/ctl/table.h"
#include "daemon/ctl/wrap.h"

namespace kvist::ctl {
namespace {

using Device = node::v1::SsdReply::Device;
using Devices = google::protobuf::RepeatedPtrField<Device>;

std::string Line(absl::string_view text, size_t columns) { return absl::StrCat(Wrap(Printable(text), columns, 2), "\n"); }

std::string Number(const Device& device) { return absl::StrCat(device.number()); }

std::string DeviceTable(const Devices& devices, size_t columns) {
  Table table({{"DEVICE", kRight}, {"DIRECTORY"}, {"DRIVEN BY"}, {"WRITABLE"}});
  for (const Device& device : devices)
    table.Add({Number(device), device.directory(), device.how(), device.writable() ? "yes" : "no"});
  std::string text = table.Render(columns);
  for (const Device& device : devices) {
    if (!device.writable())
      absl::StrAppend(&text, Line(absl::StrCat("device ", device.number(), " takes no writes: ", device.why()), columns));
  }
  return text;
}

std::string SegmentTable(const Devices& devices, size_t columns) {
  Table table({{"DEVICE", kRight},
               {"CAPACITY", kRight},
               {"LIVE", kRight},
               {"FULL", kRight, 1},
               {"SEGMENTS", kRight},
               {"FREE", kRight},
               {"FENCED", kRight},
               {"RELEASED", kRight, 2}});
  for (const Device& device : devices) {
    table.Add({Number(device), HumanBytes({device.capacity_bytes()}), HumanBytes({device.live_bytes()}),
               HumanShare(device.live_bytes(), device.capacity_bytes()), HumanCount(device.segments()),
               HumanCount(device.segments_free()), HumanCount(device.segments_fenced()),
               HumanCount(device.segments_released())});
  }
  return table.Render(columns);
}

std::string TrafficTable(const Devices& devices, size_t columns) {
  Table table({{"DEVICE", kRight},
               {"WRITTEN", kRight},
               {"AMPLIFIED", kRight, 1},
               {"READ", kRight},
               {"SYNCS", kRight, 2},
               {"IN FLIGHT", kRight},
               {"WAITING", kRight}});
  for (const Device& device : devices) {
    const double amplified = device.write_amplification();
    table.Add({Number(device), HumanBytes({device.written_bytes()}),
               amplified == 0 ? "-" : absl::StrFormat("%.2f", amplified), HumanBytes({device.read_bytes()}),
               HumanCount(device.syncs()), HumanBytes({device.in_flight_bytes()}), HumanCount(device.waiting())});
  }
  return table.Render(columns);
}

// Reads that found something else than was asked for, by what it was.
std::string BadReads(const Device& device) {
  std::string text;
  for (const auto& verdict : device.verdicts()) {
    if (verdict.name() != "good" && verdict.count() > 0)
      absl::StrAppend(&text, text.empty() ? "" : ", ", HumanCount(verdict.count()), " ", verdict.name());
  }
  return text.empty() ? "none" : text;
}

std::string ErrorTable(const Devices& devices, size_t columns) {
  Table table(
      {{"DEVICE", kRight}, {"WRITE ERRORS", kRight}, {"SYNC ERRORS", kRight}, {"READ ERRORS", kRight}, {"BAD READS"}});
  for (const Device& device : devices) {
    table.Add({Number(device), HumanCount(device.write_errors()), HumanCount(device.sync_errors()),
               HumanCount(device.read_errors()), BadReads(device)});
  }
  return table.Render(columns);
}

std::string ChunkTable(const node::v1::SsdReply& ssd, size_t columns) {
  Table table({{"CHUNKS WRITTEN", kRight},
               {"MOVED", kRight, 1},
               {"RECLAIMED", kRight},
               {"READ", kRight},
               {"WRITES FAILED", kRight, 3},
               {"READS FAILED", kRight, 2},
               {"CORRUPT", kRight}});
  table.Add({HumanCount(ssd.chunks_written()), HumanCount(ssd.chunks_moved()), HumanCount(ssd.chunks_reclaimed()),
             HumanCount(ssd.chunks_read()), HumanCount(ssd.writes_failed()), HumanCount(ssd.reads_failed()),
             HumanCount(ssd.chunks_corrupt())});
  return table.Render(columns);
}

std::string Commits(const node::v1::SsdReply& ssd) {
  return absl::StrCat("catalog: ", HumanCount(ssd.commits()), " commits, ",
                      ssd.commits_failed() == 0 ? "none" : HumanCount(ssd.commits_failed()), " failed; ",
                      ssd.catalogs_set_aside() == 0 ? "" : absl::StrCat(ssd.catalogs_set_aside(), " set aside; "),
                      ssd.catalog().empty() ? "nothing is wrong with it" : ssd.catalog());
}

std::string Encoded(const node::v1::SsdReply::Encoded& encoded) {
  return absl::StrCat("encoded: ", HumanCount(encoded.chunks()), encoded.chunks() == 1 ? " chunk, " : " chunks, ",
                      HumanBytes({encoded.bytes()}), " for ", HumanBytes({encoded.slot_bytes()}), " of KV");
}

std::string Recovery(const node::v1::SsdReply::Recovery& recovery) {
  if (!recovery.ended()) return "recovery: what was there at the start is still being found";
  std::string text = absl::StrCat("recovery: ", HumanCount(recovery.chunks()), " chunks found ",
                                  recovery.rebuilt() ? "by their records" : "in the catalog", " in ",
                                  HumanDuration(absl::Seconds(recovery.seconds())));
  if (recovery.cleared() > 0) absl::StrAppend(&text, "; ", HumanCount(recovery.cleared()), " were cleared");
  if (recovery.skipped() > 0) absl::StrAppend(&text, "; ", HumanCount(recovery.skipped()), " can't be used");
  if (!recovery.message().empty()) absl::StrAppend(&text, "; ", recovery.message());
  if (!recovery.error().empty()) absl::StrAppend(&text, "; it ended before it was done: ", recovery.error());
  return text;
}

std::string Scrub(const node::v1::SsdReply::Scrub& scrub) {
  std::string text = absl::StrCat("scrub: ", HumanCount(scrub.records()), " records read again, ",
                                  scrub.damaged() == 0 ? "none" : HumanCount(scrub.damaged()), " damaged");
  if (scrub.unreadable() > 0) absl::StrAppend(&text, ", ", HumanCount(scrub.unreadable()), " unreadable");
  if (scrub.passes() == 0) return absl::StrCat(text, "; the first pass hasn't ended");
  return absl::StrCat(text, "; ", HumanCount(scrub.passes()), scrub.passes() == 1 ? " pass" : " passes", ", the last in ",
                      HumanDuration(absl::Seconds(scrub.last_seconds())));
}

}  // namespace

std::string ToTable(const node::v1::SsdReply& ssd, size_t columns) {
  const node::v1::SsdTier& tier = ssd.tier();
  if (tier.state() == "off") return Line(absl::StrCat("no SSD tier: ", tier.trouble()), columns);
  std::string text =
      Line(absl::StrCat("SSD tier: ", tier.state(), ", ", HumanBytes({tier.live_bytes()}), " of ",
                        HumanBytes({tier.capacity_bytes()}), " live, ", HumanCount(tier.chunks()), " chunks only there"),
           columns);
  if (!tier.trouble().empty()) absl::StrAppend(&text, Line(absl::StrCat("warning: ", tier.trouble()), columns));
  for (const std::string& part :
       {DeviceTable(ssd.devices(), columns), SegmentTable(ssd.devices(), columns), TrafficTable(ssd.devices(), columns),
        ErrorTable(ssd.devices(), columns), ChunkTable(ssd, columns)})
    absl::StrAppend(&text, "\n", part);
  const std::string encoded = ssd.encoded().chunks() == 0 ? "" : Line(Encoded(ssd.encoded()), columns);
  return absl::StrCat(text, "\n", encoded, Line(Commits(ssd), columns), Line(Recovery(ssd.recovery()), columns),
                      Line(Scrub(ssd.scrub()), columns));
}

}  // namespace kvist::ctl
