#include "storage/ssd/reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "storage/base/check.h"

namespace kvist::ssd {
namespace {

constexpr uint32_t kPartBits = 12;  // at most a part for each layer
static_assert(kLayersMax < 1U << kPartBits);

// The device begins with so many shards' reads while the next ones are looked at: that takes 2 us each, and to ask for a read 4.
constexpr uint64_t kBegunAtOnce = 8;

// Whether it is the shard that was asked for, by its name and its lengths.
bool IsMeant(const RecordHeader& header, const Reader::Shard& shard) {
  if (!Is(header, shard.identity) || header.codec != shard.codec || header.runs != shard.runs) return false;
  if (header.codec != Codec::kRaw) return UnitsFor(RunBytes(header)) == UnitsFor(shard.run_bytes);
  return header.runs == 0 || RunBytes(header) == shard.run_bytes;
}

// Units of the record up to the end of run `runs - 1`.
uint32_t UnitsUpTo(const Reader::Shard& shard, uint32_t runs) { return UnitsFor(shard.run_bytes * runs); }

}  // namespace

Reader::Reader(IoQueue* queue, const Segments* segments, Options options)
    : queue_(queue), segments_(segments), options_(options) {
  KVIST_CHECK(options.check_step.value > 0);
}

std::vector<Reader::Part> Reader::PartsOf(const Shard& shard, Order order) const {
  std::vector<Part> parts;
  const uint64_t whole = std::max<uint64_t>(1, options_.piece.value / std::max<uint64_t>(shard.run_bytes.value, 1));
  parts.reserve(shard.runs / whole + 2);
  uint32_t unit = 0;
  uint32_t run = 0;
  do {
    const bool first_alone = run == 0 && order == Order::kByLayer;
    run = static_cast<uint32_t>(std::min<uint64_t>(shard.runs, run + (first_alone ? 1 : whole)));
    const uint32_t end = UnitsUpTo(shard, run);
    // Runs that lie in the last unit of those before have come with them.
    if (end == unit) {
      parts.back().end_run = run;
    } else {
      parts.push_back({.first_unit = unit, .end_unit = end, .end_run = run});
    }
    unit = end;
  } while (run < shard.runs);
  return parts;
}

void Reader::Read(std::span<const Shard> shards, Order order) {
  const uint64_t first = next_number_;
  for (const Shard& shard : shards) {
    KVIST_CHECK(shard.place && shard.runs <= kLayersMax);
    const uint64_t number = next_number_++;
    KVIST_CHECK(number_of_.try_emplace(shard.ticket, number).second);
    OneRead& read = reads_[number];
    read.shard = shard;
    // What the slot held before must not pass for what was read, should a disk say that it has read and not have done so.
    std::memset(shard.slot, 0, sizeof(RecordHeader));
    const SegmentHeader* const segment = segments_->header(shard.place.segment);
    if (segment == nullptr || (shard.epoch != 0 && segment->epoch != shard.epoch)) {
      read.verdict = Verdict::kGone;
    } else {
      read.parts = PartsOf(shard, order);
      if (uint64_t{shard.place.unit} + read.parts.back().end_unit >= segment->units) {
        read.verdict = Verdict::kOther;  // no record of this length is at this place
        read.parts.clear();
      }
    }
    if (read.parts.empty()) {
      End(number);
      continue;
    }
    if (order == Order::kByLayer) {
      SubmitPart(number, 0, IoQueue::Lane::kUrgent);
    } else {
      for (uint32_t part = 0; part < read.parts.size(); ++part) SubmitPart(number, part, IoQueue::Lane::kRead);
    }
    if ((number - first) % kBegunAtOnce == kBegunAtOnce - 1) queue_->Pump();
  }
  if (order == Order::kWhole) return;
  // After layer 0 of all, of each shard what is needed next, in the order of their first runs.
  std::vector<std::pair<uint32_t, std::pair<uint64_t, uint32_t>>> parts;  // first run, number, part
  for (uint64_t number = first; number < next_number_; ++number) {
    const auto it = reads_.find(number);
    if (it == reads_.end()) continue;
    for (uint32_t part = 1; part < it->second.parts.size(); ++part)
      parts.push_back({it->second.parts[part - 1].end_run, {number, part}});
  }
  std::sort(parts.begin(), parts.end());
  for (const auto& [run, of] : parts) SubmitPart(of.first, of.second, IoQueue::Lane::kRead);
}

void Reader::SubmitPart(uint64_t number, uint32_t part_number, IoQueue::Lane lane) {
  OneRead& read = reads_.at(number);
  Part& part = read.parts[part_number];
  const Place at{read.shard.place.segment, read.shard.place.unit + part.first_unit};
  std::byte* const to = read.shard.slot + (kUnit * part.first_unit).value;
  part.waiting = true;
  ++read.waiting;
  part.handle = queue_->Submit(lane, this,
                               {Io::Kind::kRead,
                                at.segment,
                                OffsetOf(at),
                                {to, (kUnit * (part.end_unit - part.first_unit)).value},
                                number << kPartBits | part_number});
}

void Reader::Ended(uint64_t tag, int error) {
  const uint64_t number = tag >> kPartBits;
  OneRead& read = reads_.at(number);
  Part& part = read.parts[tag & ((1U << kPartBits) - 1)];
  part.waiting = false;
  part.there = error == 0;
  --read.waiting;
  if (read.decided()) {  // the other parts only have to become quiet
  } else if (error != 0) {
    read.error = error;
    CancelParts(&read);
  } else if (!read.checking) {
    CheckSome(&read);
    if (read.checking) to_check_.push_back(number);
  }
  if (read.waiting == 0 && !read.checking) End(number);
}

bool Reader::CheckNext() {
  if (to_check_.empty()) return false;
  const uint64_t number = to_check_.front();
  OneRead& read = reads_.at(number);
  read.checking = false;
  if (!read.decided()) CheckSome(&read);
  if (read.checking) return true;
  to_check_.pop_front();
  if (read.waiting == 0) End(number);
  return true;
}

// Checks what has come without a gap, some of it.
void Reader::CheckSome(OneRead* read) {
  const uint32_t runs_before = read->runs;
  uint64_t left = options_.check_step.value;
  for (; read->checked < read->parts.size() && read->parts[read->checked].there; ++read->checked) {
    if (!read->has_header) {
      const SegmentHeader* const segment = segments_->header(read->shard.place.segment);
      KVIST_CHECK(segment != nullptr);
      read->verdict = CheckHeader(read->shard.slot, *segment, read->shard.place, &sealer_, &read->header);
      if (read->verdict == Verdict::kGood && !IsMeant(read->header, read->shard)) read->verdict = Verdict::kOther;
      if (read->verdict != Verdict::kGood) {
        CancelParts(read);
        return;
      }
      read->has_header = true;
    }
    for (; !read->run_failed && read->runs < read->parts[read->checked].end_run && left > 0; ++read->runs) {
      read->run_failed = !RunMatches(read->shard.slot, read->header, read->runs);
      if (read->run_failed) break;
      left -= std::min(left, RunBytes(read->header).value);
    }
    read->checking = !read->run_failed && read->runs < read->parts[read->checked].end_run;
    if (read->checking) break;
  }
  if (read->runs > runs_before && (read->waiting > 0 || read->checking))
    progress_.push_back({.ticket = read->shard.ticket, .runs = read->runs});
}

void Reader::CancelParts(OneRead* read) {
  for (Part& part : read->parts) {
    if (part.waiting) queue_->Cancel(part.handle);
  }
}

void Reader::End(uint64_t number) {
  OneRead& read = reads_.at(number);
  // The rest was read all the same: only the payload's end says how it was damaged.
  if (read.error == 0 && read.run_failed) read.verdict = CheckPayload(read.shard.slot, read.header);
  // A run that didn't match and does now was changed under us: somebody else writes to the slot.
  if (read.error == 0 && read.run_failed && read.verdict == Verdict::kGood) read.verdict = Verdict::kCorrupt;
  if (read.error != 0) {
    ++counters_.errors;
  } else {
    ++counters_.verdicts[static_cast<int>(read.verdict)];
    if (read.verdict == Verdict::kGood) {
      ++counters_.records;
      counters_.bytes += (kUnit * UnitsFor({read.header.payload_bytes})).value;
    }
  }
  progress_.push_back({read.shard.ticket, read.runs, true, read.error != 0 ? Verdict::kGood : read.verdict, read.error});
  number_of_.erase(read.shard.ticket);
  reads_.erase(number);
}

void Reader::Cancel(uint64_t ticket) {
  const auto it = number_of_.find(ticket);
  if (it == number_of_.end()) return;
  CancelParts(&reads_.at(it->second));
}

}  // namespace kvist::ssd
