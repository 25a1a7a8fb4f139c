#include "cuda/copy_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "storage/base/check.h"
#include "storage/base/clock.h"

namespace kvist::cuda {
namespace {

// Runs whose first unit is asked what it lacks before others get the mutex: some 20 us, and what one stream has.
constexpr size_t kSiftedAtOnce = 4096;

}  // namespace

CopyQueue::~CopyQueue() {
  absl::MutexLock lock(&mutex_);
  KVIST_CHECK(copies_.empty());
}

void CopyQueue::Submit(std::shared_ptr<RunningCopy> running) {
  const uint64_t units = running->units();
  Sleepers::Called called;
  {
    absl::MutexLock lock(&mutex_);
    KVIST_CHECK(copies_.emplace(running->op().Pack(), running).second);
    if (running->streams()) {
      std::vector<Run> runs;
      runs.reserve(units / running->run());
      for (uint64_t unit = 0; unit < units; unit += running->run()) runs.push_back({unit, unit + running->run()});
      streams_.push_back({std::move(running), std::move(runs)});
      BeginLook();
      called = sleepers_.Call(1);
    } else {
      std::deque<Waiting>& queue = QueueOf(*running);
      queue.push_back({std::move(running), 0, units});
      called = sleepers_.Call(units);
    }
  }
  Sleepers::Wake(called);
}

void CopyQueue::Look() {
  Sleepers::Called called;
  {
    absl::MutexLock lock(&mutex_);
    BeginLook();
    if (to_sift_ > 0) called = sleepers_.Call(1);
  }
  Sleepers::Wake(called);
}

void CopyQueue::Cancel(OpId op) {
  absl::MutexLock lock(&mutex_);
  const auto found = copies_.find(op.Pack());
  if (found == copies_.end()) return;  // its end is on the way
  const std::shared_ptr<RunningCopy>& copy = found->second;
  copy->Stop();
  // Past what waits before it: it has only to end. Nothing to do when all its units are claimed.
  std::deque<Waiting>& queue = QueueOf(*copy);
  const auto rest = std::stable_partition(queue.begin(), queue.end(), [&](const Waiting& w) { return w.copy != copy; });
  std::move(rest, queue.end(), std::back_inserter(dropped_));
  queue.erase(rest, queue.end());
  const auto stream = std::find_if(streams_.begin(), streams_.end(), [&](const Stream& of) { return of.copy == copy; });
  if (stream != streams_.end()) Drop(stream);
  if (!dropped_.empty()) Sleepers::Wake(sleepers_.Call(1));
}

void CopyQueue::Stop() {
  Sleepers::Called called;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (auto& [op, copy] : copies_) copy->Stop();
    while (!streams_.empty()) Drop(streams_.begin());
    called = sleepers_.Call(UINT64_MAX);
  }
  Sleepers::Wake(called);
}

std::optional<CopyQueue::Claim> CopyQueue::Next(WantedNow wanted_now, Patience patience) {
  absl::MutexLock lock(&mutex_);
  for (bool late = false;;) {
    if (to_sift_ > 0) Sift();
    if (!dropped_.empty()) return ClaimFrom(dropped_);
    const Wanted wanted = stopping_ ? Wanted{} : wanted_now();  // what is stopped has only to end
    if (wanted.loads && !loads_.empty()) return ClaimFrom(loads_);
    if (wanted.stores && !stores_.empty()) return ClaimFrom(stores_);
    if (to_sift_ > 0) {
      mutex_.Unlock();  // others' turn
      mutex_.Lock();
      continue;
    }
    const absl::Duration at_most = late ? absl::ZeroDuration() : patience();
    if (at_most <= absl::ZeroDuration() || (stopping_ && loads_.empty() && stores_.empty())) return std::nullopt;
    late = !sleepers_.Sleep(&mutex_, at_most);
  }
}

void CopyQueue::Forget(OpId op) {
  absl::MutexLock lock(&mutex_);
  copies_.erase(op.Pack());  // the caller's claim still holds the copy
}

bool CopyQueue::over() const {
  absl::MutexLock lock(&mutex_);
  return stopping_ && dropped_.empty() && loads_.empty() && stores_.empty();
}

CopyQueue::Claim CopyQueue::ClaimFrom(std::deque<Waiting>& queue) {
  Waiting& front = queue.front();
  Claim claim{front.copy, front.next_unit};
  if (front.copy->stopped()) {
    claim.skip = true;
    claim.count = front.end_unit - front.next_unit;
  }
  front.next_unit += claim.count;
  if (front.next_unit == front.end_unit) queue.pop_front();
  return claim;
}

std::list<CopyQueue::Stream>::iterator CopyQueue::Drop(std::list<Stream>::iterator stream) {
  uint64_t units = 0;
  for (const Run& run : stream->left) units += run.end - run.next;
  dropped_.push_back({std::move(stream->copy), 0, units});
  return streams_.erase(stream);
}

void CopyQueue::BeginLook() {
  to_sift_ = streams_.size();
  fewest_ = kNever;
  look_at_.store(kNever);
  looked_from_ = arrived_.load();
}

void CopyQueue::Sift() {
  const int64_t now = MonotonicNanos();
  uint64_t claims = 0;
  to_sift_ = std::min(to_sift_, streams_.size());  // some may have been cancelled
  for (size_t looks = 0; to_sift_ > 0 && looks < kSiftedAtOnce; --to_sift_) {
    const auto stream = streams_.begin();
    stream->copy->StopIfLate(now);
    if (stream->copy->stopped()) {
      Drop(stream);
      ++claims;
      continue;
    }
    looks += stream->left.size();
    claims += TakeReady(&*stream);
    if (stream->left.empty()) {
      streams_.erase(stream);
    } else {
      streams_.splice(streams_.end(), streams_, stream);  // the next time it is another one's turn
    }
  }
  if (to_sift_ == 0 && fewest_ != kNever) {
    look_at_.store(looked_from_ + fewest_);
    if (arrived_.load() >= looked_from_ + fewest_) BeginLook();
  }
  // This thread takes one of them; another one goes on with the look.
  if (claims > 0 && to_sift_ == 0) --claims;
  Sleepers::Wake(sleepers_.Call(claims));
}

uint64_t CopyQueue::TakeReady(Stream* stream) {
  const RunningCopy& copy = *stream->copy;
  uint64_t taken = 0;
  const auto first = stream->left.begin();
  auto lacking = first;  // those that lack something are moved to the front
  auto run = first;
  for (; run != stream->left.end(); ++run) {
    // By layer: up to the first step that isn't all there; what comes behind it isn't needed before.
    if (lacking != first && copy.StepOf(run->next) != copy.StepOf(first->next)) break;
    uint32_t lacks = 0;
    const uint64_t from = run->next;
    while (run->next < run->end && (lacks = copy.Lacks(run->next)) == 0) ++run->next;
    if (run->next > from) QueueOf(copy).push_back({stream->copy, from, run->next});
    taken += run->next - from;
    if (lacks == 0) continue;
    fewest_ = std::min<uint64_t>(fewest_, lacks);
    *lacking++ = *run;
  }
  stream->left.erase(lacking, run);
  return taken;
}

}  // namespace kvist::cuda
