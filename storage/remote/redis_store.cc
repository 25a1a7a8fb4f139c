#include "storage/remote/redis_store.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string_view>
#include <utility>

#include "absl/memory/memory.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::remote {
namespace {

// About what a socket takes before its writer has to wait (Linux: 208 KiB by default). With more on its way over one connection server and reader wait for
// each other; over two each goes on with the other one's.
constexpr Bytes kAhead = KiB(256);

}  // namespace

absl::StatusOr<std::unique_ptr<RedisStore>> RedisStore::Create(const RedisOptions& options) {
  KVIST_RETURN_IF_ERROR(options.Validate());
  std::shared_ptr<const TlsContext> tls;
  if (options.tls.enabled) { KVIST_ASSIGN_OR_RETURN(tls, TlsContext::Create(options.tls)); }
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return ErrnoStatus("eventfd", errno);
  return absl::WrapUnique(new RedisStore(options, std::move(tls), std::move(event)));
}

RedisStore::RedisStore(const RedisOptions& options, std::shared_ptr<const TlsContext> tls, UniqueFd event)
    : options_(options), tls_(std::move(tls)), event_(std::move(event)), in_flight_(options.limits) {
  for (Lane* const lane : {&bytes_, &questions_}) {
    const uint32_t connections = lane == &bytes_ ? options_.connections : 1;
    for (uint32_t i = 0; i < connections; ++i)
      lane->connections.push_back(std::make_unique<RedisConnection>(
          &options_, tls_, [this] { Wake(); },
          [this](const std::shared_ptr<RedisOp>& op, Outcome outcome) { End(op, std::move(outcome)); }));
  }
  thread_ = std::thread([this] { Run(); });
}

RedisStore::~RedisStore() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
}

void RedisStore::Wake() const {
  const uint64_t one = 1;
  KVIST_CHECK(::write(event_.get(), &one, sizeof one) == sizeof one || errno == EAGAIN);
}

absl::Status RedisStore::Submit(Batch batch, Done done) {
  KVIST_RETURN_IF_ERROR(ValidateNames(batch));
  KVIST_RETURN_IF_ERROR(in_flight_.Take(LoadOf(batch)));
  auto running = std::make_shared<RunningBatch>(std::move(batch), std::move(done), &in_flight_);
  bool first = false;
  bool stopping = false;
  {
    MutexLock lock(&mutex_);
    stopping = stopping_;  // then nobody looks any more
    first = submitted_.empty();
    if (!stopping) submitted_.push_back(running);
  }
  if (stopping) {
    running->Refuse();
    return BeingClosed();
  }
  if (first) Wake();
  return absl::OkStatus();
}

void RedisStore::Run() {
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);  // OpenSSL writes without MSG_NOSIGNAL
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  while (TakeSubmitted()) {
    const absl::Time now = MonotonicNow();
    GiveUpLate(now);
    for (Lane* const lane : {&questions_, &bytes_}) {
      for (const auto& connection : lane->connections) connection->Turn(now);
      Pump(lane, now);
      // What was issued goes together: a call of the kernel for many commands.
      for (const auto& connection : lane->connections)
        if (connection->has_output()) connection->Turn(now);
      TakeUnsent(lane);
    }
    Announce();
    Poll(MonotonicNow());
  }
  const absl::Time now = MonotonicNow();
  const absl::Status cancelled = absl::CancelledError("the remote store is being closed");
  for (Lane* const lane : {&questions_, &bytes_}) {
    for (const auto& connection : lane->connections) connection->Close(cancelled, now);
    TakeUnsent(lane);
    for (const auto& op : std::exchange(lane->waiting, {})) End(op, {cancelled});
  }
  Announce();
  KVIST_CHECK(running_.empty());
}

bool RedisStore::TakeSubmitted() {
  std::vector<std::shared_ptr<RunningBatch>> submitted;
  bool stopping = false;
  {
    MutexLock lock(&mutex_);
    submitted.swap(submitted_);
    stopping = stopping_;
  }
  for (std::shared_ptr<RunningBatch>& batch : submitted) {
    Lane& lane = IsQuestion(batch->batch()) ? questions_ : bytes_;
    if (batch->batch().kind == Kind::kRemove) TellOfRemovals(batch->batch());
    Running running{batch, &lane, {}};
    for (size_t i = 0; i < batch->batch().operations.size(); ++i) {
      auto op = std::make_shared<RedisOp>();
      op->batch = batch;
      op->index = i;
      op->bytes = batch->operation(i).bytes();
      running.ops.push_back(op);
      lane.waiting.push_back(std::move(op));
    }
    running_.emplace(batch->batch().deadline, std::move(running));
  }
  return !stopping;
}

void RedisStore::TellOfRemovals(const Batch& batch) const {
  std::set<std::string_view> names;
  for (const Operation& operation : batch.operations) names.insert(operation.name);
  for (const auto& connection : bytes_.connections) connection->Removing(names);
}

void RedisStore::GiveUpLate(absl::Time now) {
  while (!running_.empty() && running_.begin()->first <= now) {
    const std::vector<std::shared_ptr<RedisOp>> ops = running_.begin()->second.ops;
    Lane& lane = *running_.begin()->second.lane;
    for (const std::shared_ptr<RedisOp>& op : ops) {
      if (op->batch->ended(op->index)) continue;
      const auto waiting = std::find(lane.waiting.begin(), lane.waiting.end(), op);
      if (waiting != lane.waiting.end()) {
        lane.waiting.erase(waiting);
      } else {
        for (const auto& connection : lane.connections)
          if (connection->Has(op.get())) connection->GiveUp(op.get(), now);
      }
      TakeUnsent(&lane);  // of a connection that was ended for its sake
      End(op, {absl::DeadlineExceededError("redis didn't answer in time")});
    }
  }
}

void RedisStore::TakeUnsent(Lane* lane) {
  for (const auto& connection : lane->connections) {
    auto unsent = connection->TakeUnsent();
    lane->waiting.insert(lane->waiting.begin(), unsent.begin(), unsent.end());
  }
}

bool RedisStore::HasRoom(const RedisConnection& connection, Bytes wanted) const {
  return connection.outstanding().value == 0 || connection.outstanding() + wanted <= options_.window;
}

void RedisStore::Pump(Lane* lane, absl::Time now) {
  while (true) {
    TakeUnsent(lane);
    if (lane->waiting.empty()) return;
    RedisConnection* best = nullptr;
    RedisConnection* idle = nullptr;
    bool connecting = false;
    bool any_ready = false;
    const absl::Status* error = nullptr;
    for (const auto& connection : lane->connections) {
      if (connection->ready()) {
        any_ready = true;
        if (best == nullptr || connection->outstanding() < best->outstanding()) best = connection.get();
      } else if (!connection->idle()) {
        connecting = true;
      } else {
        if (idle == nullptr || connection->retry_at() < idle->retry_at()) idle = connection.get();
        if (!connection->error().ok()) error = &connection->error();
      }
    }
    const Bytes wanted = lane->waiting.front()->bytes;
    const bool may_begin = !connecting && idle != nullptr && idle->retry_at() <= now;
    if (may_begin && best != nullptr && best->outstanding() > Bytes{} && best->outstanding() + wanted > kAhead) {
      idle->Begin(now);
      continue;  // while it is being made the others go on
    }
    if (best != nullptr && HasRoom(*best, wanted)) {
      std::shared_ptr<RedisOp> op = std::move(lane->waiting.front());
      lane->waiting.pop_front();
      best->Issue(std::move(op));
      continue;
    }
    if (connecting) return;
    if (may_begin) {
      idle->Begin(now);
      if (!idle->idle() && !idle->ready()) return;
      continue;
    }
    if (any_ready) return;
    // Nobody can be asked now, and the next attempt isn't worth a wait: it would be a lookup's.
    const absl::Status unavailable = *error;
    for (const auto& op : std::exchange(lane->waiting, {})) End(op, {unavailable});
  }
}

void RedisStore::End(const std::shared_ptr<RedisOp>& op, Outcome outcome) {
  if (!op->batch->End(op->index, std::move(outcome))) return;
  const auto [begin, end] = running_.equal_range(op->batch->batch().deadline);
  const auto at = std::find_if(begin, end, [&op](const auto& one) { return one.second.batch == op->batch; });
  KVIST_CHECK(at != end);
  finished_.push_back(op->batch);
  running_.erase(at);
}

void RedisStore::Announce() {
  for (const auto& batch : std::exchange(finished_, {})) batch->Announce();
}

void RedisStore::Poll(absl::Time now) {
  std::vector<pollfd> polled{{event_.get(), POLLIN, 0}};
  absl::Time wake = running_.empty() ? absl::InfiniteFuture() : running_.begin()->first;
  for (const Lane* const lane : {&questions_, &bytes_}) {
    // While one is being made no other is begun: Pump waits for it, whenever others might be.
    const bool connecting = std::any_of(lane->connections.begin(), lane->connections.end(),
                                        [](const auto& connection) { return !connection->idle() && !connection->ready(); });
    for (const auto& connection : lane->connections) {
      polled.push_back(connection->Poll());
      wake = std::min(wake, connection->wake());
      if (lane->waiting.empty()) continue;
      if (connection->idle() && !connecting) wake = std::min(wake, connection->retry_at());
      if (connection->ready() && HasRoom(*connection, lane->waiting.front()->bytes)) wake = absl::InfinitePast();
    }
  }
  const timespec timeout = absl::ToTimespec(std::clamp(wake - now, absl::ZeroDuration(), absl::Seconds(60)));
  ::ppoll(polled.data(), polled.size(), &timeout, nullptr);
  if (polled[0].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t n = ::read(event_.get(), &count, sizeof count);
  }
}

}  // namespace kvist::remote
