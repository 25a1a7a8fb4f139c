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

constexpr size_t kServersMax = 1000;    // of a cluster: as many as its specification allows for
constexpr uint32_t kRedirectedMax = 5;  // while slots move; in a ring of servers that lie it ends there
// How often a cluster is asked who has what, at most: while it repairs itself that changes within seconds.
constexpr absl::Duration kAskNodesPause = absl::Seconds(1);
constexpr absl::Duration kAskOthersPause = absl::Milliseconds(50);

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
  ServerAt(options.address);
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
    DropServers();
    AskNodes(now);
    EachLane([&](Lane* lane) { Turn(lane, now); });
    Announce();
    Poll(MonotonicNow());
  }
  const absl::Time now = MonotonicNow();
  const absl::Status cancelled = absl::CancelledError("the remote store is being closed");
  closing_ = true;
  EachLane([&](Lane* lane) {
    for (const auto& connection : lane->connections) connection->Close(cancelled, now);
    TakeUnsent(lane);
    for (const auto& op : std::exchange(lane->waiting, {})) End(op, {cancelled});
  });
  Announce();
  KVIST_CHECK(running_.empty());
}

void RedisStore::Turn(Lane* lane, absl::Time now) {
  for (const auto& connection : lane->connections) connection->Turn(now);
  Pump(lane, now);
  // What was issued goes together: a call of the kernel for many commands.
  for (const auto& connection : lane->connections)
    if (connection->has_output()) connection->Turn(now);
  TakeUnsent(lane);
}

// ---- Servers ----------------------------------------------------------------------------------------------------------------

template <class Do>
void RedisStore::EachLane(Do&& each) {
  for (size_t i = 0; i < servers_.size(); ++i) {  // by index: meanwhile there may be more
    each(&servers_[i]->questions);
    each(&servers_[i]->bytes);
  }
}

RedisStore::Server* RedisStore::ServerAt(const std::string& address) {
  for (const auto& server : servers_)
    if (server->address == address) return server.get();
  if (servers_.size() >= kServersMax) return nullptr;
  auto server = std::make_unique<Server>();
  server->address = address;
  for (Lane* const lane : {&server->bytes, &server->questions}) {
    const uint32_t connections = lane == &server->bytes ? options_.connections : 1;
    for (uint32_t i = 0; i < connections; ++i)
      lane->connections.push_back(std::make_unique<RedisConnection>(
          &options_, address, tls_, [this] { Wake(); },
          [this](const std::shared_ptr<RedisOp>& op, Outcome outcome) { Answered(op, std::move(outcome)); }));
  }
  return servers_.emplace_back(std::move(server)).get();
}

RedisStore::Server* RedisStore::ServerOf(const RedisOp& op) const {
  return slots_.empty() ? servers_.front().get() : slots_[RedisSlotOf(op.operation().name)];
}

RedisStore::Lane* RedisStore::LaneOf(const RedisOp& op, Server* server) {
  return op.question ? &server->questions : &server->bytes;
}

void RedisStore::Answered(const std::shared_ptr<RedisOp>& op, Outcome outcome) {
  if (!op->redirect.has_value() || closing_) return End(op, std::move(outcome));
  const RedisRedirect redirect = *op->redirect;
  const bool in_parts = op->step == RedisOp::Step::kParts;
  Server* const server = ServerAt(redirect.address);
  // A put of several parts while its slot moves would leave one object here and one there.
  if (server == nullptr || op->redirected == kRedirectedMax || (redirect.ask && in_parts && op->kind() == Kind::kPut))
    return End(op, std::move(outcome));
  if (!redirect.ask) {
    if (slots_.empty()) slots_.assign(kRedisSlots, servers_.front().get());
    slots_[redirect.slot] = server;
    ask_nodes_ = true;
  }
  RedisOp again;
  again.batch = op->batch;
  again.index = op->index;
  again.bytes = op->bytes;
  again.question = op->question;
  again.removed = op->removed;
  again.redirected = op->redirected + 1;
  again.asking = redirect.ask;
  again.torn = op->torn || (redirect.ask && in_parts);
  *op = std::move(again);
  LaneOf(*op, server)->waiting.push_back(op);
}

void RedisStore::AskNodes(absl::Time now) {
  if (!ask_nodes_ || running_.empty() || now < ask_nodes_at_) return;
  // One that is there; or else one after the other is tried.
  const auto connection = [this](size_t i) { return servers_[i % servers_.size()]->questions.connections.front().get(); };
  ++asked_last_;
  for (size_t i = asked_last_; i < asked_last_ + servers_.size(); ++i) {
    if (!connection(i)->ready() || connection(i)->asks_nodes()) continue;
    asked_last_ = i % servers_.size();
    connection(i)->AskNodes([this, by = servers_[asked_last_].get()](std::string_view nodes) { NodesTold(*by, nodes); },
                            now);
    ask_nodes_at_ = now + kAskNodesPause;
    return;
  }
  asked_last_ %= servers_.size();
  if (connection(asked_last_)->idle() && connection(asked_last_)->retry_at() <= now) connection(asked_last_)->Begin(now);
  ask_nodes_at_ = now + kAskOthersPause;
}

// Redirects call servers by their addresses or by names; what calls them otherwise may not lead to them from here.
std::vector<RedisSlotRange> RedisStore::Believed(const Server& by, std::string_view nodes) const {
  for (const bool by_name : {false, true}) {
    std::vector<RedisSlotRange> ranges = SlotsIn(nodes, by.questions.connections.front()->host(), by_name);
    const auto is_known = [this](const RedisSlotRange& range) {
      return std::any_of(servers_.begin(), servers_.end(), [&](const auto& one) { return one->address == range.address; });
    };
    if (std::any_of(ranges.begin(), ranges.end(), is_known)) return ranges;
  }
  return {};
}

void RedisStore::NodesTold(const Server& by, std::string_view nodes) {
  const std::vector<RedisSlotRange> ranges = Believed(by, nodes);
  ask_nodes_ = false;
  nodes_refused_ = ranges.empty();
  if (nodes_refused_) return;
  for (const RedisSlotRange& range : ranges) {
    Server* const server = ServerAt(range.address);
    if (server == nullptr) continue;
    std::fill(slots_.begin() + range.first, slots_.begin() + range.last + 1, server);
  }
  // What waits for a server that has lost it.
  std::vector<std::shared_ptr<RedisOp>> waiting;
  EachLane([&](Lane* lane) {
    const auto stays = [](const auto& op) { return op->asking; };
    const auto moves = std::stable_partition(lane->waiting.begin(), lane->waiting.end(), stays);
    waiting.insert(waiting.end(), moves, lane->waiting.end());
    lane->waiting.erase(moves, lane->waiting.end());
  });
  for (auto& op : waiting) {
    Lane* const lane = LaneOf(*op, ServerOf(*op));
    lane->waiting.push_back(std::move(op));
  }
  drop_servers_ = true;
}

void RedisStore::DropServers() {
  if (!std::exchange(drop_servers_, false)) return;
  std::set<const Server*> wanted(slots_.begin(), slots_.end());
  wanted.insert(servers_.front().get());
  const auto is_over = [&](const std::unique_ptr<Server>& server) {
    const auto is_quiet = [](const Lane& lane) {
      return lane.waiting.empty() && std::none_of(lane.connections.begin(), lane.connections.end(),
                                                  [](const auto& connection) { return connection->busy(); });
    };
    return wanted.count(server.get()) == 0 && is_quiet(server->bytes) && is_quiet(server->questions);
  };
  servers_.erase(std::remove_if(servers_.begin(), servers_.end(), is_over), servers_.end());
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
    if (batch->batch().kind == Kind::kRemove) TellOfRemovals(batch->batch());
    const bool question = IsQuestion(batch->batch());
    Running running{batch, {}};
    for (size_t i = 0; i < batch->batch().operations.size(); ++i) {
      auto op = std::make_shared<RedisOp>();
      op->batch = batch;
      op->index = i;
      op->bytes = batch->operation(i).bytes();
      op->question = question;
      running.ops.push_back(op);
      Lane* const lane = LaneOf(*op, ServerOf(*op));
      lane->waiting.push_back(std::move(op));
    }
    running_.emplace(batch->batch().deadline, std::move(running));
  }
  return !stopping;
}

void RedisStore::TellOfRemovals(const Batch& batch) const {
  std::set<std::string_view> names;
  for (const Operation& operation : batch.operations) names.insert(operation.name);
  for (const auto& server : servers_)
    for (const auto& connection : server->bytes.connections) connection->Removing(names);
}

void RedisStore::GiveUpLate(absl::Time now) {
  while (!running_.empty() && running_.begin()->first <= now) {
    const std::vector<std::shared_ptr<RedisOp>> ops = running_.begin()->second.ops;
    for (const std::shared_ptr<RedisOp>& op : ops) {
      if (op->batch->ended(op->index)) continue;
      EachLane([&](Lane* lane) {
        const auto waiting = std::find(lane->waiting.begin(), lane->waiting.end(), op);
        if (waiting != lane->waiting.end()) {
          lane->waiting.erase(waiting);
        } else {
          for (const auto& connection : lane->connections)
            if (connection->Has(op.get())) connection->GiveUp(op.get(), now);
        }
        TakeUnsent(lane);  // of a connection that was ended for its sake
      });
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
  if (!slots_.empty() && (absl::IsUnavailable(outcome.status) || absl::IsDeadlineExceeded(outcome.status))) {
    ask_nodes_ = true;  // another server may have it soon
    // Where nobody says who, others are asked for it themselves.
    Server*& server = slots_[RedisSlotOf(op->operation().name)];
    const auto at = std::find_if(servers_.begin(), servers_.end(), [&](const auto& one) { return one.get() == server; });
    if (nodes_refused_) server = (at + 1 == servers_.end() ? servers_.front() : *(at + 1)).get();
  }
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
  if (ask_nodes_ && !running_.empty()) wake = std::min(wake, ask_nodes_at_);
  EachLane([&](const Lane* lane) {
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
  });
  const timespec timeout = absl::ToTimespec(std::clamp(wake - now, absl::ZeroDuration(), absl::Seconds(60)));
  ::ppoll(polled.data(), polled.size(), &timeout, nullptr);
  if (polled[0].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t n = ::read(event_.get(), &count, sizeof count);
  }
}

}  // namespace kvist::remote
