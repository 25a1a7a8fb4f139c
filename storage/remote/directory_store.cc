#include "storage/remote/directory_store.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/base/status.h"
#include "storage/remote/in_flight.h"
#include "storage/remote/object_file.h"

namespace kvist::remote {

absl::Status DirectoryOptions::Validate() const {
  if (!absl::StartsWith(directory, "/")) return absl::InvalidArgumentError("directory: an absolute path");
  if (threads < 1 || threads > 256) return absl::InvalidArgumentError("threads: 1 to 256");
  if (piece < KiB(4) || piece > MiB(64)) return absl::InvalidArgumentError("piece: 4 KiB to 64 MiB");
  return absl::OkStatus();
}

// What a worker needs of an operation: copies, so that nothing leads to the batch when that has been given up.
struct DirectoryStore::Op {
  std::shared_ptr<RunningBatch> batch;
  size_t index = 0;
  Kind kind = Kind::kGet;
  Operation operation;
  bool removed = false;  // a removal of its name was submitted while it was put; guarded by Work's mutex
  Mutex mutex;
  bool given_up ABSL_GUARDED_BY(mutex) = false;

  // Copies between the worker's buffer and a span. false: it was given up.
  bool Copy(std::byte* to, const std::byte* from, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    if (given_up) return false;
    std::memcpy(to, from, bytes);
    return true;
  }
  bool GivenUp() ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    return given_up;
  }
  void GiveUp() ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    given_up = true;
  }
};

class DirectoryStore::Work {
 public:
  explicit Work(const DirectoryOptions& options)
      : files(options.directory, options.before_step), piece(options.piece), in_flight(options.limits) {}

  absl::Status Add(Batch batch, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  // A thread's life; one of them does questions only.
  void DoOperations(bool questions_only) ABSL_LOCKS_EXCLUDED(mutex_);
  void KeepTime() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all that is left; returns when the workers have ended, or after so long.
  void Stop(absl::Duration leave_after) ABSL_LOCKS_EXCLUDED(mutex_);
  void WorkerBegins() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ++workers_;
  }

  const ObjectFiles files;
  const Bytes piece;
  InFlight in_flight;

 private:
  struct Running {
    std::shared_ptr<RunningBatch> batch;
    std::vector<std::shared_ptr<Op>> ops;
    bool Removes(const std::string& name) const {
      return std::any_of(ops.begin(), ops.end(),
                         [&](const auto& op) { return op->kind == Kind::kRemove && op->operation.name == name; });
    }
  };
  using Batches = std::vector<std::shared_ptr<RunningBatch>>;

  // What came of it; nothing when it was given up.
  std::optional<Outcome> Do(Op* op, std::vector<std::byte>* buffer) const;
  absl::StatusOr<bool> Put(Op* op, std::vector<std::byte>* buffer) const;
  std::optional<Outcome> Get(Op* op, std::vector<std::byte>* buffer) const;
  // The batches of which that was the last operation are to be announced, without the lock.
  void End(const std::shared_ptr<Op>& op, Outcome outcome, Batches* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndAll(const Running& running, const absl::Status& status, Batches* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Announce(const Batches& finished) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar work_there_;
  absl::CondVar time_changed_;
  absl::CondVar worker_ended_;
  // Questions (IsQuestion) before bytes.
  std::deque<std::shared_ptr<Op>> questions_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Op>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::multimap<absl::Time, Running> running_ ABSL_GUARDED_BY(mutex_);  // by deadline
  std::vector<std::shared_ptr<Op>> putting_ ABSL_GUARDED_BY(mutex_);    // what threads put now, given up or not
  uint32_t workers_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t announcing_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::Status DirectoryStore::Work::Add(Batch batch, Done done) {
  const absl::Time deadline = batch.deadline;
  Running running{std::make_shared<RunningBatch>(std::move(batch), std::move(done), &in_flight), {}};
  for (size_t i = 0; i < running.batch->batch().operations.size(); ++i) {
    auto op = std::make_shared<Op>();
    op->batch = running.batch;
    op->index = i;
    op->kind = running.batch->batch().kind;
    op->operation = running.batch->operation(i);
    running.ops.push_back(std::move(op));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_) {
      std::deque<std::shared_ptr<Op>>& queue = IsQuestion(running.batch->batch()) ? questions_ : waiting_;
      queue.insert(queue.end(), running.ops.begin(), running.ops.end());
      for (const std::shared_ptr<Op>& put : putting_) put->removed |= running.Removes(put->operation.name);
      const bool first = running_.empty() || deadline < running_.begin()->first;
      running_.emplace(deadline, std::move(running));
      if (first) time_changed_.Signal();
      work_there_.SignalAll();
      return absl::OkStatus();
    }
  }
  running.batch->Refuse();  // nobody looks any more
  return BeingClosed();
}

void DirectoryStore::Work::DoOperations(bool questions_only) {
  std::vector<std::byte> buffer(piece.value);
  while (true) {
    std::shared_ptr<Op> op;
    {
      absl::MutexLock lock(&mutex_);
      while (questions_.empty() && (questions_only || waiting_.empty()) && !stopping_) work_there_.Wait(&mutex_);
      if (stopping_) {
        --workers_;
        worker_ended_.SignalAll();
        return;
      }
      std::deque<std::shared_ptr<Op>>& queue = questions_.empty() ? waiting_ : questions_;
      op = std::move(queue.front());
      queue.pop_front();
      if (op->kind == Kind::kPut) putting_.push_back(op);
    }
    std::optional<Outcome> outcome = Do(op.get(), &buffer);
    const bool stored = op->kind == Kind::kPut && outcome.has_value() && outcome->status.ok();
    Batches finished;
    bool late = false, removed = false;
    {
      absl::MutexLock lock(&mutex_);
      late = op->GivenUp();
      removed = op->removed;
      putting_.erase(std::remove(putting_.begin(), putting_.end(), op), putting_.end());
      if (outcome.has_value() && !late) End(op, *std::move(outcome), &finished);
      announcing_ += finished.empty() ? 0 : 1;
    }
    // Whoever has cleared that name since must not find it again.
    if (late && stored && removed) (void)files.Remove(op->operation.name);
    op = nullptr;
    Announce(finished);
  }
}

void DirectoryStore::Work::KeepTime() {
  while (true) {
    Batches finished;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      const absl::Time now = MonotonicNow();
      while (!running_.empty() && running_.begin()->first <= now)
        EndAll(Running(running_.begin()->second), absl::DeadlineExceededError("the shared directory didn't answer in time"),
               &finished);
      if (finished.empty()) {
        const absl::Time next = running_.empty() ? absl::InfiniteFuture() : running_.begin()->first;
        time_changed_.WaitWithTimeout(&mutex_, next - now);
        continue;
      }
      ++announcing_;
    }
    Announce(finished);
  }
}

void DirectoryStore::Work::Stop(absl::Duration leave_after) {
  Batches finished;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    while (!running_.empty())
      EndAll(Running(running_.begin()->second), absl::CancelledError("the remote store is being closed"), &finished);
    announcing_ += finished.empty() ? 0 : 1;
    work_there_.SignalAll();
    time_changed_.SignalAll();
  }
  Announce(finished);
  const absl::Time until = MonotonicNow() + leave_after;
  absl::MutexLock lock(&mutex_);
  while (announcing_ > 0 || (workers_ > 0 && MonotonicNow() < until)) {
    if (announcing_ > 0) {
      worker_ended_.Wait(&mutex_);
    } else {
      worker_ended_.WaitWithTimeout(&mutex_, until - MonotonicNow());
    }
  }
}

void DirectoryStore::Work::End(const std::shared_ptr<Op>& op, Outcome outcome, Batches* finished) {
  op->GiveUp();
  if (!op->batch->End(op->index, std::move(outcome))) return;
  const auto [begin, end] = running_.equal_range(op->batch->batch().deadline);
  const auto at = std::find_if(begin, end, [&op](const auto& one) { return one.second.batch == op->batch; });
  KVIST_CHECK(at != end);
  finished->push_back(op->batch);
  running_.erase(at);
}

void DirectoryStore::Work::EndAll(const Running& running, const absl::Status& status, Batches* finished) {
  for (const std::shared_ptr<Op>& op : running.ops) {
    if (running.batch->ended(op->index)) continue;
    for (std::deque<std::shared_ptr<Op>>* const queue : {&questions_, &waiting_})
      queue->erase(std::remove(queue->begin(), queue->end(), op), queue->end());
    End(op, {status}, finished);
  }
}

void DirectoryStore::Work::Announce(const Batches& finished) {
  if (finished.empty()) return;
  for (const auto& batch : finished) batch->Announce();
  absl::MutexLock lock(&mutex_);
  --announcing_;
  worker_ended_.SignalAll();
}

std::optional<Outcome> DirectoryStore::Work::Do(Op* op, std::vector<std::byte>* buffer) const {
  switch (op->kind) {
    case Kind::kGet: return Get(op, buffer);
    case Kind::kPut: {
      const auto put = Put(op, buffer);
      if (put.ok() && !*put) return std::nullopt;
      return Outcome{put.status()};
    }
    case Kind::kExists: {
      const auto opened = files.Open(op->operation.name);
      if (!opened.ok()) return Outcome{opened.status()};
      return Outcome{absl::OkStatus(), opened->found};
    }
    case Kind::kRemove: return Outcome{files.Remove(op->operation.name)};
  }
  return std::nullopt;
}

absl::StatusOr<bool> DirectoryStore::Work::Put(Op* op, std::vector<std::byte>* buffer) const {
  KVIST_ASSIGN_OR_RETURN(ObjectFiles::Draft draft, files.Create(op->operation.name));
  for (const auto part : {op->operation.head, op->operation.body}) {
    for (size_t at = 0; at < part.size(); at += piece.value) {
      const size_t bytes = std::min<size_t>(piece.value, part.size() - at);
      if (!op->Copy(buffer->data(), part.data() + at, bytes)) return false;
      KVIST_RETURN_IF_ERROR(draft.Append(std::span(*buffer).first(bytes)));
    }
  }
  if (op->GivenUp()) return false;
  KVIST_RETURN_IF_ERROR(draft.Publish());
  return true;
}

std::optional<Outcome> DirectoryStore::Work::Get(Op* op, std::vector<std::byte>* buffer) const {
  const auto opened = files.Open(op->operation.name);
  if (!opened.ok()) return Outcome{opened.status()};
  Outcome outcome{absl::OkStatus(), opened->found};
  if (opened->found != Found::kYes) return outcome;
  const size_t head_room = op->operation.head_into.size();
  if (opened->bytes > head_room + op->operation.body_into.size()) {
    outcome.found = Found::kTooLong;
    return outcome;
  }
  uint64_t file_at = 0;
  for (const auto part : {op->operation.head_into, op->operation.body_into}) {
    for (size_t at = 0; at < part.size() && file_at < opened->bytes;) {
      const size_t wanted = std::min<uint64_t>({piece.value, part.size() - at, opened->bytes - file_at});
      const auto bytes = files.Read(opened->file, file_at, std::span(*buffer).first(wanted));
      if (!bytes.ok()) return Outcome{bytes.status()};
      if (*bytes == 0) {  // shorter than it was a moment ago
        outcome.found = Found::kInParts;
        return outcome;
      }
      if (!op->Copy(part.data() + at, buffer->data(), *bytes)) return std::nullopt;
      at += *bytes;
      file_at += *bytes;
    }
  }
  outcome.head = {std::min<uint64_t>(file_at, head_room)};
  outcome.body = {file_at - outcome.head.value};
  return outcome;
}

absl::StatusOr<std::unique_ptr<DirectoryStore>> DirectoryStore::Create(const DirectoryOptions& options) {
  KVIST_RETURN_IF_ERROR(options.Validate());
  return absl::WrapUnique(new DirectoryStore(options));
}

DirectoryStore::DirectoryStore(const DirectoryOptions& options)
    : leave_after_(options.leave_after), work_(std::make_shared<Work>(options)) {
  for (uint32_t i = 0; i <= options.threads; ++i) {
    work_->WorkerBegins();
    std::thread([work = work_, questions_only = i == options.threads] { work->DoOperations(questions_only); }).detach();
  }
  timekeeper_ = std::thread([work = work_] { work->KeepTime(); });
}

DirectoryStore::~DirectoryStore() {
  work_->Stop(leave_after_);
  timekeeper_.join();
}

absl::Status DirectoryStore::Submit(Batch batch, Done done) {
  KVIST_RETURN_IF_ERROR(ValidateNames(batch));
  KVIST_RETURN_IF_ERROR(work_->in_flight.Take(LoadOf(batch)));
  return work_->Add(std::move(batch), std::move(done));
}

Load DirectoryStore::load() const { return work_->in_flight.load(); }

}  // namespace kvist::remote
