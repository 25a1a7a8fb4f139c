#include "cuda/shared_memory_engine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <list>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cuda/running_copy.h"
#include "storage/base/check.h"

namespace kvist::cuda {
namespace {

constexpr uint32_t kThreadsMax = 256;
// Units that are asked whether they are ready before others get the mutex: some 20 us.
constexpr size_t kSiftedAtOnce = 4096;

// Units are claimed under one mutex: some tens of nanoseconds against about 100 us of copying, and it keeps the order of
// claims (dropped copies, loads, stores; each first come, first served) in one place. Everything else about a unit happens
// outside it. Loads that stream from slots that are being read wait apart; their units join the loads as they become ready: whoever says
// that something has come only wakes a thread, which looks, once for all that has come by then.
class SharedMemoryEngine final : public CopyEngine {
 public:
  SharedMemoryEngine(const SharedMemoryEngineOptions& options, Done done) : done_(std::move(done)), verify_(options.verify) {
    threads_.reserve(options.threads);
    for (uint32_t i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this] { Work(); });
      pthread_setname_np(threads_.back().native_handle(), "kvist-copy");
      if (!options.cpus.empty()) Pin(threads_.back(), options.cpus[i % options.cpus.size()]);
    }
  }

  ~SharedMemoryEngine() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      for (auto& [op, copy] : copies_) copy->Stop();
      while (!streams_.empty()) Drop(streams_.begin());
    }
    work_.SignalAll();
    for (std::thread& thread : threads_) thread.join();
    absl::MutexLock lock(&mutex_);
    KVIST_CHECK(copies_.empty());
  }

  void Submit(Copy copy) override {
    auto running = std::make_shared<RunningCopy>(std::move(copy), verify_);
    uint64_t wake = running->units();
    {
      absl::MutexLock lock(&mutex_);
      KVIST_CHECK(copies_.emplace(running->op().Pack(), running).second);
      if (running->streams()) {
        streams_.push_back({std::move(running), std::vector<uint64_t>(wake)});
        std::iota(streams_.back().units.begin(), streams_.back().units.end(), 0);
        to_sift_ = streams_.size();
        wake = 1;
      } else {
        (running->direction() == Direction::kLoad ? loads_ : stores_).push_back({std::move(running), 0, wake});
      }
      wake = std::min<uint64_t>(wake, sleeping_);
    }
    Wake(wake);
  }

  void Arrived() override {
    {
      absl::MutexLock lock(&mutex_);
      to_sift_ = streams_.size();
      if (to_sift_ == 0 || sleeping_ == 0) return;
    }
    Wake(1);
  }

  void Cancel(OpId op) override {
    absl::MutexLock lock(&mutex_);
    const auto found = copies_.find(op.Pack());
    if (found == copies_.end()) return;  // its end is on the way
    const std::shared_ptr<RunningCopy>& copy = found->second;
    copy->Stop();
    // Past what waits before it: it has only to end. Nothing to do when all its units are claimed.
    std::deque<Waiting>& queue = copy->direction() == Direction::kLoad ? loads_ : stores_;
    const auto rest = std::stable_partition(queue.begin(), queue.end(), [&](const Waiting& w) { return w.copy != copy; });
    std::move(rest, queue.end(), std::back_inserter(dropped_));
    queue.erase(rest, queue.end());
    const auto stream = std::find_if(streams_.begin(), streams_.end(), [&](const Stream& of) { return of.copy == copy; });
    if (stream == streams_.end()) return;
    Drop(stream);
    work_.Signal();
  }

 private:
  // Units [next_unit, end_unit) of a copy, that nobody has claimed.
  struct Waiting {
    std::shared_ptr<RunningCopy> copy;
    uint64_t next_unit = 0;
    uint64_t end_unit = 0;
  };
  // A copy with units that aren't ready, in their order.
  struct Stream {
    std::shared_ptr<RunningCopy> copy;
    std::vector<uint64_t> units;
  };
  // Units [first, first + count) of `copy`, to be copied or skipped.
  struct Claim {
    std::shared_ptr<RunningCopy> copy;
    uint64_t first = 0;
    uint64_t count = 1;
    bool skip = false;
  };

  static void Pin(std::thread& thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    KVIST_CHECK(pthread_setaffinity_np(thread.native_handle(), sizeof set, &set) == 0);  // Validate has asked for the CPU
  }

  void Work() {
    while (std::optional<Claim> claim = Next()) {
      RunningCopy& copy = *claim->copy;
      const bool quiet = claim->skip ? copy.Skip(claim->count) : copy.Run(claim->first);
      if (quiet) {
        End(copy);
      } else if (!claim->skip && copy.streams() && copy.stopped()) {
        Arrived();  // what is left of it has only to end
      }
    }
  }

  // Sleeps until there is something to claim; nothing when the engine ends and all copies are claimed.
  std::optional<Claim> Next() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (;;) {
      if (to_sift_ > 0) Sift();
      for (std::deque<Waiting>* queue : {&dropped_, &loads_, &stores_}) {
        if (!queue->empty()) return ClaimFrom(*queue);
      }
      if (to_sift_ > 0) {
        mutex_.Unlock();  // others' turn
        mutex_.Lock();
        continue;
      }
      if (stopping_) return std::nullopt;
      ++sleeping_;
      work_.Wait(&mutex_);
      --sleeping_;
    }
  }

  Claim ClaimFrom(std::deque<Waiting>& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
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

  // What is left of a stream is to be skipped.
  std::list<Stream>::iterator Drop(std::list<Stream>::iterator stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    dropped_.push_back({std::move(stream->copy), 0, stream->units.size()});
    return streams_.erase(stream);
  }

  // Lets the ready units of streams be claimed, as far as it comes with kSiftedAtOnce looks; to_sift_ says what is left to do.
  void Sift() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    uint64_t claims = 0;
    to_sift_ = std::min(to_sift_, streams_.size());  // some may have been cancelled
    for (size_t looks = 0; to_sift_ > 0 && looks < kSiftedAtOnce; --to_sift_) {
      const auto stream = streams_.begin();
      if (stream->copy->stopped()) {
        Drop(stream);
        ++claims;
        continue;
      }
      looks += stream->units.size();
      claims += TakeReady(&*stream);
      if (stream->units.empty()) {
        streams_.erase(stream);
      } else {
        streams_.splice(streams_.end(), streams_, stream);  // the next time it is another one's turn
      }
    }
    // This thread takes one of them.
    for (uint64_t wake = std::min<uint64_t>(claims, uint64_t{sleeping_} + 1); wake > 1; --wake) work_.Signal();
  }

  uint64_t TakeReady(Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const RunningCopy& copy = *stream->copy;
    const size_t before = stream->units.size();
    const auto not_ready = [&](uint64_t unit) { return !copy.Ready(unit); };
    // By layer: up to the first step that isn't all ready; what comes behind it isn't needed before.
    auto end = stream->units.begin();
    while (end != stream->units.end()) {
      const uint32_t step = copy.StepOf(*end);
      const auto next = std::find_if(end, stream->units.end(), [&](uint64_t unit) { return copy.StepOf(unit) != step; });
      const bool whole = std::none_of(end, next, not_ready);
      end = next;
      if (!whole) break;
    }
    const auto rest = std::stable_partition(stream->units.begin(), end, not_ready);
    for (auto unit = rest; unit != end; ++unit) loads_.push_back({stream->copy, *unit, *unit + 1});
    stream->units.erase(rest, end);
    return before - stream->units.size();
  }

  // Outside the mutex, else the woken threads would queue for it one behind the other.
  void Wake(uint64_t threads) ABSL_LOCKS_EXCLUDED(mutex_) {
    for (; threads > 0; --threads) work_.Signal();
  }

  void End(RunningCopy& copy) ABSL_LOCKS_EXCLUDED(mutex_) {
    const OpId op = copy.op();
    CopyEnd end = copy.Result();
    {
      absl::MutexLock lock(&mutex_);
      copies_.erase(op.Pack());  // the caller's claim still holds the copy
    }
    done_(op, std::move(end));
  }

  const Done done_;
  const Verify verify_;
  absl::Mutex mutex_;
  absl::CondVar work_;                                   // something to claim, or stopping_
  std::deque<Waiting> dropped_ ABSL_GUARDED_BY(mutex_);  // cancelled copies, to be skipped
  std::deque<Waiting> loads_ ABSL_GUARDED_BY(mutex_);
  std::deque<Waiting> stores_ ABSL_GUARDED_BY(mutex_);
  std::list<Stream> streams_ ABSL_GUARDED_BY(mutex_);  // in the order of their turns
  size_t to_sift_ ABSL_GUARDED_BY(mutex_) = 0;         // of them, from the first: something may have come
  absl::flat_hash_map<uint64_t, std::shared_ptr<RunningCopy>> copies_ ABSL_GUARDED_BY(mutex_);  // by OpId; not yet quiet
  uint32_t sleeping_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace

absl::Status SharedMemoryEngineOptions::Validate() const {
  if (threads == 0 || threads > kThreadsMax) {
    return absl::InvalidArgumentError(absl::StrCat("copy threads: ", threads, ", allowed are 1 to ", kThreadsMax));
  }
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (!cpus.empty()) sched_getaffinity(0, sizeof allowed, &allowed);
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) {
      return absl::InvalidArgumentError(absl::StrCat("copy thread cpus: this process may not run on CPU ", cpu));
    }
  }
  return absl::OkStatus();
}

std::unique_ptr<CopyEngine> MakeSharedMemoryEngine(SharedMemoryEngineOptions options, CopyEngine::Done done) {
  KVIST_CHECK(options.Validate().ok());
  return std::make_unique<SharedMemoryEngine>(options, std::move(done));
}

}  // namespace kvist::cuda
