#include "storage/ssd/scrubber.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "storage/base/clock.h"
#include "storage/ssd/segment_scan.h"

namespace kvist::ssd {

Scrubber::Scrubber(SegmentRecords* records, Owner* owner, Options options)
    : records_(*records), owner_(*owner), options_(options), thread_([this] { Run(); }) {}

Scrubber::~Scrubber() { End(); }

void Scrubber::Begin() {
  const absl::MutexLock lock(&mutex_);
  begun_ = true;
  told_.Signal();
}

void Scrubber::End() {
  {
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
    told_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

Store::Scrubbed Scrubber::scrubbed() const {
  const absl::MutexLock lock(&mutex_);
  return scrubbed_;
}

void Scrubber::Run() {
  {
    const absl::MutexLock lock(&mutex_);
    while (!begun_ && !ending_) told_.Wait(&mutex_);
  }
  for (absl::Time next = MonotonicNow(); SleepUntil(next);) {
    next = MonotonicNow() + options_.every;
    Pass(MonotonicNow());
  }
}

// false: it ends.
bool Scrubber::SleepUntil(absl::Time when) {
  const absl::MutexLock lock(&mutex_);
  for (absl::Time now = MonotonicNow(); !ending_ && now < when; now = MonotonicNow())
    told_.WaitWithTimeout(&mutex_, when - now);
  return !ending_;
}

bool Scrubber::Pace(Bytes read) {
  read_ += read;
  return SleepUntil(began_ + absl::Seconds(static_cast<double>(read_.value) / rate_));
}

bool Scrubber::Ending() const {
  const absl::MutexLock lock(&mutex_);
  return ending_;
}

// The records, at the scrubber's pace, and until the disk refuses something.
class Scrubber::Source final : public RecordSource {
 public:
  explicit Source(Scrubber* scrubber) : scrubber_(*scrubber) {}

  bool refused() const { return refused_; }

  Found ReadHeader(const SegmentToRead& segment, uint32_t unit, RecordHeader* header) override {
    return Note(scrubber_.records_.ReadHeader(segment, unit, header));
  }
  std::unique_ptr<Headers> Scan(const SegmentToRead& segment) override {
    class Noted final : public Headers {
     public:
      Noted(Source* source, std::unique_ptr<Headers> headers) : source_(*source), headers_(std::move(headers)) {}
      Found At(uint32_t unit, RecordHeader* header) override { return source_.Note(headers_->At(unit, header)); }

     private:
      Source& source_;
      const std::unique_ptr<Headers> headers_;
    };
    return std::make_unique<Noted>(this, scrubber_.records_.Scan(segment));
  }
  uint32_t FindNext(const SegmentToRead& segment, uint32_t from, uint32_t to) override {
    while (from < to && !refused_ && scrubber_.Pace(kUnit * kSearched)) {
      const uint32_t end = std::min(to, from + kSearched);
      const uint32_t next = scrubber_.records_.FindNext(segment, from, end);
      if (next < end) return next;
      from = end;
    }
    return to;
  }
  absl::StatusOr<std::string> ReadPayload(const SegmentToRead& segment, const RecordHeader& header) override {
    return scrubber_.records_.ReadPayload(segment, header);
  }

 private:
  static constexpr uint32_t kSearched = 256;  // units at a time
  Found Note(Found found) {
    refused_ = refused_ || found == Found::kUnreadable;
    return found;
  }

  Scrubber& scrubber_;
  bool refused_ = false;
};

void Scrubber::Pass(absl::Time began) {
  const std::vector<SegmentHeader> segments = owner_.FullSegments();
  Bytes all{};
  for (const SegmentHeader& segment : segments) all += kUnit * segment.units;
  began_ = began;
  rate_ = std::max(static_cast<double>(options_.rate_min.value),
                   2 * static_cast<double>(all.value) / absl::ToDoubleSeconds(options_.every));
  read_ = {};
  std::vector<Hole> tails;
  for (const SegmentHeader& segment : segments) {
    ReadSegment(segment, &tails);
    if (Ending()) return;
  }
  Tell(tails);
  const absl::MutexLock lock(&mutex_);
  ++scrubbed_.passes;
  scrubbed_.last = MonotonicNow() - began;
}

void Scrubber::ReadSegment(const SegmentHeader& header, std::vector<Hole>* tails) {
  const SegmentToRead segment = ToRead(header);
  Source source(this);
  std::vector<Hole> bad, gaps;
  uint64_t unreadable = 0;
  uint32_t next = 1;
  ScanSegment(
      &source, segment, next,
      [&](const RecordHeader& record) {
        const uint32_t units = UnitsFor({record.payload_bytes});
        if (record.unit > next) gaps.push_back({header, next, record.unit});
        next = record.unit + units;
        const absl::StatusOr<Verdict> verdict = records_.Check(segment, record);
        if (!verdict.ok()) {
          ++unreadable;
        } else if (*verdict != Verdict::kGood) {
          bad.push_back({header, record.unit, record.unit + 1});
        }
        {
          const absl::MutexLock lock(&mutex_);
          ++scrubbed_.records;
          scrubbed_.read += kUnit * units;
        }
        Pace(kUnit * units);
      },
      [&] { return unreadable == 0 && !source.refused() && !Ending(); });
  {
    const absl::MutexLock lock(&mutex_);
    scrubbed_.unreadable += unreadable + (source.refused() ? 1 : 0);
  }
  if (Ending()) return;
  if (unreadable == 0 && !source.refused()) {
    bad.insert(bad.end(), gaps.begin(), gaps.end());
    if (next < segment.units - 1) tails->push_back({header, next, segment.units - 1});
  }
  Tell(bad);
}

void Scrubber::Tell(const std::vector<Hole>& holes) {
  if (holes.empty()) return;
  std::vector<PlaceWanted> wanted = owner_.WantedIn(holes);
  if (wanted.empty()) return;
  {
    const absl::MutexLock lock(&mutex_);
    scrubbed_.damaged += wanted.size();
  }
  owner_.Damaged(std::move(wanted));
}

}  // namespace kvist::ssd
