#include "storage/ssd/store_device.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/ssd/probe.h"

namespace kvist::ssd {
namespace {

constexpr Bytes kRegisteredMax = GiB(1);  // at once; see device.h
// Whoever writes again what lay in a segment needs room for it.
uint32_t Reserve(uint32_t segments) { return segments >= 6 ? 2 : 1; }
// When all have been asked for, and too few were given back, they are asked for again after this.
constexpr absl::Duration kAskAfter = absl::Milliseconds(100);
// When only segments beyond the capacity are wanted back: nobody waits for their room.
constexpr absl::Duration kAskForSurplusAfter = absl::Seconds(10);
// What the owner has just said takes so long to become a free segment, about: sooner, more would be asked for than is needed.
constexpr absl::Duration kAnswerWithin = absl::Milliseconds(10);
// Shards wait so long for a segment that is being given back.
constexpr absl::Duration kStarvedMax = absl::Seconds(2);
constexpr absl::Duration kRetryAfter = absl::Seconds(1);  // where a segment was refused its file
// So many segments in a row that couldn't be written: it isn't the segments.
constexpr int kFailuresMax = 3;
// A read that fails is worth so many good ones, and when there have been so many more of them the disk isn't asked any more: each may
// take seconds, and a disk that fails one in a thousand goes on for ever.
constexpr uint32_t kGoodReads = 64;
constexpr uint32_t kReadErrorsMax = 8;
constexpr absl::Duration kPublishAfter = absl::Milliseconds(10);

// Against what refuses a segment its file.
const char* WhatHelps(int error) {
  if (MeansNoSpace(error)) return "free some space, or make ssd.capacity smaller";
  if (error == EMFILE || error == ENFILE)
    return "let kvistd open more files (LimitNOFILE of its unit), or make ssd.capacity smaller";
  return "let kvistd's user write there; it is tried again each second";
}

}  // namespace

StoreDevice::StoreDevice(std::unique_ptr<Device> device, Options options, Listener* listener)
    : options_(std::move(options)), listener_(listener), drive_(std::move(device), options_.drive) {
  for (const SegmentHeader& header : options_.found) drive_.segments().Restore(header, 0);
  for (const uint32_t segment : options_.withheld) drive_.segments().Withhold(segment);
  drive_.segments().RaiseEpoch(options_.epoch);
  Publish();
}

StoreDevice::~StoreDevice() { Join(); }

void StoreDevice::Start() {
  thread_ = std::thread([this] { Run(); });
}

void StoreDevice::Post(Task task) {
  bool first = false;
  {
    const absl::MutexLock lock(&mutex_);
    first = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  if (first) drive_.device().Wake();
}

void StoreDevice::Register(std::span<std::byte> memory) {
  while (!memory.empty()) {
    const auto piece = memory.first(std::min<size_t>(memory.size(), kRegisteredMax.value));
    memory = memory.subspan(piece.size());
    Post([piece](StoreDevice& self) { self.drive_.device().Register(piece).IgnoreError(); });  // it works all the same
  }
}

void StoreDevice::Stop() {
  Post([](StoreDevice& self) {
    self.stopping_ = true;
    self.drive_.writer().GiveUp(ECANCELED);
    self.drive_.writer().Flush();
  });
}

void StoreDevice::Join() {
  if (thread_.joinable()) thread_.join();
}

void StoreDevice::Begin() {
  if (options_.probe) Probe();
  listener_->Writable(options_.number, writable_, why_);
}

void StoreDevice::Run() {
  Begin();
  while (!ended()) Turn(MonotonicNow(), absl::InfiniteFuture());
  Publish();
}

void StoreDevice::Probe() {
  const Segments& segments = drive_.segments();
  ProbeOptions probe{.segment = options_.number};
  for (uint32_t i = 0; i < segments.options().segments; ++i) {
    probe.segment = i * kDevicesMax + options_.number;
    probe.may_write = segments.state(probe.segment) == Segments::State::kFree;
    if (probe.may_write) break;
  }
  if (!probe.may_write) probe.segment = options_.number;
  const auto result = ssd::Probe(&drive_.device(), kUnit * segments.options().units, probe);
  if (result.ok()) drive_.queue().set_options(result->queue);  // else what is good for most
}

void StoreDevice::Turn(absl::Time now, absl::Time until) {
  std::vector<Task> tasks;
  {
    const absl::MutexLock lock(&mutex_);
    tasks.swap(tasks_);
  }
  for (const Task& task : tasks) task(*this);
  TellEmpty();
  AskForRoom(now);
  if (now - published_ > kPublishAfter || drive_.idle()) {
    Publish();
    published_ = now;
  }
  if (ended()) return Tell();
  drive_.Begin(now);
  GiveUpIfStarved(now);
  // All of it before it sleeps: nobody else would.
  Tell();
  if (starved_since_ != absl::InfiniteFuture()) until = std::min(until, starved_since_ + kStarvedMax);
  for (const absl::Time ask_at : {ask_at_, drive_.segments().HasSurplus() ? ask_for_surplus_at_ : ask_at_}) {
    if (ask_at > now) until = std::min(until, ask_at);
  }
  drive_.Wait(std::min(until, retry_at_));
  bool more = true;
  for (int looks = 0; looks < Drive::kLooks && more; ++looks) {
    more = drive_.LookAtNext();
    Tell();  // also when there was nothing: giving the device what it may have ends what was cancelled
  }
}

void StoreDevice::Tell() {
  while (TellSome()) {}  // what is told of may end more
}

bool StoreDevice::TellSome() {
  Writer& writer = drive_.writer();
  const std::vector<SegmentHeader> announced = writer.TakeAnnounced();
  for (const SegmentHeader& header : announced) listener_->Announced(header);
  const std::vector<Writer::Outcome> outcomes = writer.TakeOutcomes();
  for (const Writer::Outcome& outcome : outcomes) {
    if (outcome.error == 0) failures_ = 0;
    listener_->ShardWritten(outcome);
  }
  const std::vector<uint32_t> settled = writer.TakeSettled();
  for (const uint32_t segment : settled) {
    look_at_.push_back(segment);
    listener_->Settled(segment);
  }
  const std::vector<uint32_t> fenced = writer.TakeFenced();
  for (const uint32_t segment : fenced) {
    listener_->Fenced(segment);
    if (++failures_ < kFailuresMax || !writable_) continue;
    SetWritable(false, absl::StrCat("writing to ", options_.directory, " fails, and has failed in ", failures_,
                                    " segments: replace the disk, or take it out of ssd.path"));
    writer.GiveUp(EIO);
  }
  const std::vector<Reader::Progress> progressed = drive_.reader().TakeProgress();
  for (const Reader::Progress& progress : progressed) {
    if (progress.ended) NoteRead(progress.error);
    listener_->ShardRead(progress);
  }
  TellEmpty();
  return !announced.empty() || !outcomes.empty() || !settled.empty() || !fenced.empty() || !progressed.empty();
}

void StoreDevice::NoteRead(int error) {
  if (error == ECANCELED) return;
  read_trouble_ = error != 0 ? read_trouble_ + kGoodReads : read_trouble_ - std::min(read_trouble_, 1U);
  if (unreadable_ || read_trouble_ < kReadErrorsMax * kGoodReads) return;
  unreadable_ = true;
  SetWritable(false, absl::StrCat("reading from ", options_.directory,
                                  " fails too often (the last time: ", ErrnoStatus("reading", error).message(),
                                  "); replace the disk, or take it out of ssd.path"));
  drive_.writer().GiveUp(EIO);
}

void StoreDevice::GiveUpIfStarved(absl::Time now) {
  Writer& writer = drive_.writer();
  if (retry_at_ <= now) {
    retry_at_ = now + kRetryAfter;
    writer.Retry();
  }
  if (writer.no_file() == 0 && retry_at_ != absl::InfiniteFuture()) {
    retry_at_ = absl::InfiniteFuture();
    if (failures_ < kFailuresMax && !unreadable_) SetWritable(true, {});
  }
  if (!writer.starved()) {
    starved_since_ = absl::InfiniteFuture();
    return;
  }
  if (writer.no_file() != 0) {
    const int error = writer.no_file();
    if (retry_at_ == absl::InfiniteFuture()) retry_at_ = now + kRetryAfter;
    SetWritable(false, absl::StrCat(options_.directory, ": ", ErrnoStatus("making a segment's file", error).message(), "; ",
                                    WhatHelps(error)));
    writer.GiveUp(error);
    return;
  }
  if (starved_since_ == absl::InfiniteFuture()) starved_since_ = now;
  if (now - starved_since_ < kStarvedMax) return;
  starved_since_ = absl::InfiniteFuture();
  writer.GiveUp(ENOSPC);
}

void StoreDevice::Write(const Writer::Shard& shard) {
  if (stopping_ || !writable_ || !drive_.writer().Write(shard)) {
    const int error = stopping_ ? ECANCELED : failures_ >= kFailuresMax || unreadable_ ? EIO : ENOSPC;
    listener_->ShardWritten({.ticket = shard.ticket, .error = error});
  }
}

void StoreDevice::Read(std::span<const Reader::Shard> shards, Reader::Order order) {
  const Segments& segments = drive_.segments();
  std::vector<Reader::Shard> to_read;
  for (const Reader::Shard& shard : shards) {
    const bool fenced =
        segments.header(shard.place.segment) != nullptr && segments.state(shard.place.segment) == Segments::State::kFenced;
    if (stopping_ || fenced || unreadable_) {
      listener_->ShardRead({.ticket = shard.ticket, .ended = true, .error = stopping_ ? ECANCELED : EIO});
    } else {
      to_read.push_back(shard);
    }
  }
  drive_.reader().Read(to_read, order);
}

void StoreDevice::Kill(Place place, uint32_t units) {
  drive_.segments().Kill(place, units);
  if (drive_.segments().live_units(place.segment) == 0) look_at_.push_back(place.segment);
}

void StoreDevice::Fence(uint32_t segment) { drive_.segments().Fence(segment); }

void StoreDevice::Release(uint32_t segment) {
  released_soon_.erase(segment);
  drive_.segments().Release(segment);
  if (drive_.segments().IsSurplus(segment)) drive_.device().Remove(segment);
  if (MeansNoSpace(drive_.writer().no_file())) drive_.writer().Retry();  // this one has its file
  ++released_;
  asked_for_.clear();
}

void StoreDevice::Sync(const std::vector<uint32_t>& segments, std::function<void(std::vector<uint32_t> failed)> synced) {
  KVIST_CHECK(syncing_.left == 0);
  if (segments.empty()) return synced({});
  syncing_ = {};
  syncing_.left = segments.size();
  syncing_.synced = std::move(synced);
  for (const uint32_t segment : segments)
    drive_.queue().Submit(IoQueue::Lane::kControl, &syncing_, {.kind = Io::Kind::kSync, .segment = segment, .tag = segment});
}

void StoreDevice::Syncing::Ended(uint64_t tag, int error) {
  if (IsOfTheDisk(error)) failed.push_back(static_cast<uint32_t>(tag));
  if (--left == 0) std::exchange(synced, nullptr)(std::move(failed));
}

void StoreDevice::Recovered() {
  recovered_ = true;
  for (const SegmentHeader& header : options_.found) look_at_.push_back(header.segment);
}

void StoreDevice::TellEmpty() {
  if (!recovered_) return;
  std::vector<uint32_t> segments;
  segments.swap(look_at_);
  for (const uint32_t segment : segments) {
    if (drive_.segments().state(segment) != Segments::State::kFull || drive_.segments().live_units(segment) != 0) continue;
    if (released_soon_.insert(segment).second) listener_->Empty(segment);
  }
}

void StoreDevice::AskAgain(absl::Time now) {
  asking_ = false;
  ask_at_ = now + kAnswerWithin;
}

void StoreDevice::AskForRoom(absl::Time now) {
  const Segments& segments = drive_.segments();
  if (!recovered_ || asking_ || stopping_ || unreadable_ || now < ask_at_) return;
  // On a full disk those that are free have no file: what there is is used again.
  const bool full = MeansNoSpace(drive_.writer().no_file());
  const auto soon = std::count_if(released_soon_.begin(), released_soon_.end(),
                                  [&](uint32_t segment) { return !segments.IsSurplus(segment); });
  const uint32_t free = (full ? 0 : segments.free_segments()) + static_cast<uint32_t>(soon);
  // Nobody has written since: nobody needs it. On a full disk nobody can.
  const bool idle = !full && drive_.writer().idle() && asked_at_records_ == drive_.writer().counters().records;
  const bool needed = !idle && free < Reserve(segments.options().segments);
  if (!needed && !(segments.HasSurplus() && now >= ask_for_surplus_at_)) return;
  std::vector<uint32_t> candidates = segments.Candidates(UINT32_MAX);
  std::erase_if(candidates, [&](uint32_t s) {
    return released_soon_.contains(s) || asked_for_.contains(s) || (!needed && !segments.IsSurplus(s));
  });
  if (candidates.empty()) {
    asked_for_.clear();
    (needed ? ask_at_ : ask_for_surplus_at_) = now + (needed ? kAskAfter : kAskForSurplusAfter);
    return;
  }
  asked_for_.insert(candidates.front());
  if (needed) asked_at_records_ = drive_.writer().counters().records;
  asking_ = true;
  listener_->WantsBack(*segments.header(candidates.front()));
}

void StoreDevice::SetWritable(bool writable, const std::string& why) {
  if (writable_ == writable && why_ == why) return;
  writable_ = writable;
  why_ = why;
  listener_->Writable(options_.number, writable, why);
}

void StoreDevice::Publish() {
  Store::DeviceRow row;
  const Segments& segments = drive_.segments();
  row.directory = options_.directory;
  row.how = drive_.device().report().how;
  row.warnings = drive_.device().report().warnings;
  row.writable = writable_;
  row.why = why_;
  row.segments = segments.options().segments;
  row.free = segments.free_segments();
  for (uint32_t i = 0; i < segments.options().segments; ++i)
    row.fenced += segments.state(i * kDevicesMax + options_.number) == Segments::State::kFenced;
  row.capacity = kUnit * segments.capacity_units();
  row.live = kUnit * segments.live_units();
  const Writer::Counters& written = drive_.writer().counters();
  row.written = {written.bytes};
  row.records_written = written.records;
  row.syncs = written.syncs;
  row.write_errors = written.write_errors;
  row.sync_errors = written.sync_errors;
  const Reader::Counters& read = drive_.reader().counters();
  row.read = {read.bytes};
  row.records_read = read.records;
  row.read_errors = read.errors;
  std::copy(std::begin(read.verdicts), std::end(read.verdicts), std::begin(row.verdicts));
  row.in_flight = (drive_.queue().reading() + drive_.queue().writing()).value;
  row.waiting = drive_.writer().waiting();
  row.segments_released = released_;
  const absl::MutexLock lock(&mutex_);
  row_ = std::move(row);
}

Store::DeviceRow StoreDevice::row() const {
  const absl::MutexLock lock(&mutex_);
  return row_;
}

}  // namespace kvist::ssd
