#ifndef KVIST_DAEMON_CORE_JOBS_H_
#define KVIST_DAEMON_CORE_JOBS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/loss.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

namespace kvist::core {

using JobId = Id<struct JobTag, uint64_t>;  // counts up from 1; never reused

enum class Tier : uint8_t { kDram, kSsd, kRemote };
inline constexpr size_t kTiers = 3;
constexpr uint8_t TierBit(Tier tier) { return static_cast<uint8_t>(1U << static_cast<uint8_t>(tier)); }  // in a set of tiers

enum class JobKind : uint8_t { kClear, kClearPrompt, kMove, kPrefetch, kCompress, kDecompress };
enum class JobState : uint8_t { kRunning, kDone, kCancelled };

// A long operation that an operator has asked for.
struct Job {
  JobId id;
  std::string request = {};  // who asks again under this name gets this job; "" for none
  // A number of what was asked for, by which it is told from another of that name; 0: no name, or not known
  uint64_t what = 0;
  JobKind kind = JobKind::kClear;
  JobState state = JobState::kRunning;
  std::optional<SpaceId> space = {};  // of which; absent: of all
  std::optional<Tier> tier = {};      // of a clear: which gives it up; absent: all do
  // The space's; there also when an earlier core has ended the job, and this one doesn't know the space.
  std::optional<SpaceDigest> digest = {};
  bool resumed = false;  // it was asked for of an earlier core, which ended before it
  bool aside = false;    // it waits for the remote store, or what works there, so others have their turn
  // Progress: what it has looked at, of what it will have. A clear's are places of the index.
  uint64_t done = 0;
  uint64_t total = 0;
  // When it began to work, and its end; absent also of one that an earlier core has ended.
  std::optional<absl::Time> began = {}, ended = {};
  uint8_t unkept = 0;   // tiers, a bit each, from which what it does may still come back; it doesn't end before
  uint8_t lost = 0;     // tiers that couldn't make it durable: it ends cancelled, and a later daemon is to do it again
  uint64_t chunks = 0;  // to which it was done: of a clear those that it has freed or that go when their last use ends
  // Of jobs on prompts (prompt_jobs.h).
  Bytes bytes{};         // of those chunks' shards
  uint64_t already = 0;  // chunks to which nothing had to be done
  // That were to be moved, encoded or cleared in one tier and were not: in use, for want of room, or what is there isn't whole; and those of which
  // a store that didn't answer hasn't said whether it has them.
  uint64_t left = 0;
  // Of one that encodes: what `bytes` have become.
  Bytes bytes_after{};
  Loss loss = {};
  std::string trouble = {};  // why it ended before its end; while it runs, what it waits for

  bool kept() const { return unkept == 0; }
};

// The job that an event begins (events.h): what all that ask for one say of it.
template <class Asked>
Job JobOf(const Asked& asked, JobKind kind) {
  Job job{.id = asked.job, .request = asked.request, .what = asked.what, .kind = kind};
  job.space = asked.space;
  job.resumed = asked.resumed;
  return job;
}

// The jobs that run, in the order in which they get their turn, and those that ended last.
//
// Lifecycle of a job: Start -> any number of steps by whoever asks for `current` -> End, done or cancelled; it is listed until kEndedKept
//   others have ended after it.
// Threads: one.
class Jobs {
 public:
  static constexpr size_t kRunningMax = 64;
  static constexpr size_t kEndedKept = 64;

  bool full() const { return running_.size() >= kRunningMax; }
  bool busy() const { return !running_.empty(); }

  // `job` runs from now on, after those before it. Its id must be new, and no job be missing a place (`full`).
  void Start(Job job);
  // The one whose turn it is: the first that isn't aside; null when there is none.
  Job* current();
  const Job* current() const { return const_cast<Jobs*>(this)->current(); }
  // Null when it doesn't run.
  Job* Running(JobId id);
  // What the running job does survives the daemon in these tiers.
  void Keep(JobId id, uint8_t tiers);
  // Ends a running job, and returns it; null when no such job runs.
  const Job* End(JobId id, JobState how, absl::Time now);

  // Lists a job that has ended elsewhere. Its id must be new.
  void Remember(Job ended);

  // Null when it isn't listed: it never was, or ended long ago.
  const Job* Find(JobId id) const;
  const Job* OfRequest(absl::string_view request) const;
  // Of a request for several spaces: that of this one.
  const Job* OfRequest(absl::string_view request, const SpaceDigest& space) const;
  // All that are listed: those that ended, in the order in which they did, and those that run.
  template <class F>
  void ForEach(F f) const {
    for (const std::deque<Job>* jobs : {&ended_, &running_}) {
      for (const Job& job : *jobs) f(job);
    }
  }
  // Those that run, in the order in which they get their turn.
  template <class F>
  void ForEachRunning(F f) {
    for (Job& job : running_) f(&job);
  }

 private:
  std::deque<Job> running_;
  std::deque<Job> ended_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_JOBS_H_
