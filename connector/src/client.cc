#include "connector/src/client.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "storage/base/shm/frame_socket.h"
#include "storage/base/shm/futex.h"
#include "storage/base/status.h"

namespace kvist::connector {
namespace {

constexpr int64_t kRetryFirstNanos = 20'000'000;
constexpr int64_t kRetryMostNanos = 1'000'000'000;  // a daemon that returns is found within a second
constexpr int64_t kHandshakeNanos = 5'000'000'000;
// After a hang-up: how long the daemon's process is given to end. If it lives on, it has ended the session itself, and it
// does so only when no copy runs.
constexpr int64_t kDyingNanos = 1'000'000'000;

}  // namespace

// ---- Connecting -------------------------------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const kvist_options& options) {
  KVIST_ASSIGN_OR_RETURN(Registration registration, Registration::Create(options));
  auto client = std::unique_ptr<Client>(new Client(std::move(registration)));
  if (options.deadline_us > 0) client->default_deadline_us_ = options.deadline_us;
  client->stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  client->wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!client->stop_ || !client->wake_) return ErrnoStatus("eventfd", errno);

  // The first handshake runs on the caller's thread: the engine's write_page is called during kvist_connect and never later.
  const int64_t deadline = client->DeadlineNanos(options.connect_timeout_us > 0 ? options.connect_timeout_us : 1'000'000);
  for (int64_t pause = kRetryFirstNanos; true; pause = std::min(2 * pause, kRetryMostNanos)) {
    absl::StatusOr<std::shared_ptr<Link>> link = Link::Connect(&client->registration_, deadline, client->stop_.get());
    if (link.ok()) {
      client->SetLink(*std::move(link), KVIST_CONNECTED);
      break;
    }
    const bool away = absl::IsUnavailable(link.status()) || absl::IsDeadlineExceeded(link.status());
    if (!away && options.ask_again == 0) return link.status();
    if (!away) {
      MutexLock lock(&client->mutex_);
      client->state_ = KVIST_REFUSED;
      client->refusal_ = link.status();
      break;
    }
    if (MonotonicNanos() + pause >= deadline) break;
    client->Pause(pause);
  }
  if (client->registration_.worker() && !client->registration_.probed) {
    KVIST_RETURN_IF_ERROR(client->registration_.ProbeLocally());
    client->registration_.probed = true;
  }
  // Signals are for the engine's own threads.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::optional<std::system_error> no_thread;
  try {
    client->keeper_ = std::thread([raw = client.get()] { raw->Keep(); });
  } catch (const std::system_error& error) { no_thread = error; }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (no_thread.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("kvist_connect needs one thread of its own, and there is none to be had (", no_thread->what(),
                     "): raise the limits of threads (ulimit -u, pids.max of the cgroup) or of memory (ulimit -v)"));
  }
  ::pthread_setname_np(client->keeper_.native_handle(), "kvist-keeper");
  return client;
}

Client::~Client() { End().IgnoreError(); }

absl::Status Client::End() {
  if (!keeper_.joinable()) return absl::OkStatus();  // it has ended
  bool quiet = true;
  // What is in flight is given up; the pages must be quiet before the caller may free them, but nobody waits for ever.
  const int64_t deadline = DeadlineNanos(0);
  std::vector<Op> ops;
  {
    MutexLock lock(&mutex_);
    for (const Op& op : ops_) {
      if (op.generation % 2 == 1) ops.push_back(op);
    }
  }
  for (const Op& op : ops) {
    if (!IsCopy(op.kind)) continue;  // touches no pages; its lease ends with the session
    if (op.kind == Kind::kStore) {
      op.link->Abandon(op.ticket);
    } else {
      shm::Entry cancel{};
      cancel.opcode = shm::Opcode::kCancel;
      cancel.cell = op.ticket.cell;
      cancel.sequence = op.ticket.sequence;
      op.link->Tell(cancel);
      quiet = Link::Over(op.ticket, op.link->Await(op.ticket, UINT32_MAX, deadline, Link::kNoSpin), UINT32_MAX) && quiet;
    }
    op.link->ReleaseStreams(op.ticket);
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  keeper_.join();
  if (quiet) return absl::OkStatus();
  return absl::DeadlineExceededError(
      "kvistd stands still in the middle of a load, and may go on with it: keep the memory as it is while that kvistd "
      "lives");
}

bool Client::Pause(int64_t nanos) {
  pollfd stop{stop_.get(), POLLIN, 0};
  const int64_t until = MonotonicNanos() + nanos;
  // A signal that reaches this thread all the same must not end it: then the client would never connect again.
  for (int64_t left = nanos; left > 0; left = until - MonotonicNanos()) {
    const int ready = ::poll(&stop, 1, static_cast<int>(left / 1'000'000 + 1));
    if (ready >= 0 || errno != EINTR) return ready == 0;
  }
  return true;
}

void Client::SetLink(std::shared_ptr<Link> link, kvist_connection state) {
  MutexLock lock(&mutex_);
  link_ = std::move(link);
  state_ = state;
  if (link_ != nullptr) digest_ = link_->space_digest();
  StateChanged();
}

void Client::StateChanged() {
  state_changes_.fetch_add(1, std::memory_order_release);
  shm::FutexWakeAll(&state_changes_);
}

void Client::Keep() {
  int64_t pause = kRetryFirstNanos;
  while (true) {
    if (const std::shared_ptr<Link> current = link(); current != nullptr) {
      Watch(current);
      SetLink(nullptr, KVIST_RECONNECTING);
      pause = kRetryFirstNanos;
    }
    if (!Pause(pause)) return;
    absl::StatusOr<std::shared_ptr<Link>> next =
        Link::Connect(&registration_, MonotonicNanos() + kHandshakeNanos, stop_.get());
    if (next.ok()) {
      SetLink(*std::move(next), KVIST_CONNECTED);
      continue;
    }
    const bool away = absl::IsUnavailable(next.status()) || absl::IsDeadlineExceeded(next.status());
    MutexLock lock(&mutex_);
    state_ = away ? KVIST_RECONNECTING : KVIST_REFUSED;
    refusal_ = next.status();
    StateChanged();
    pause = std::min(2 * pause, kRetryMostNanos);
  }
}

// Returns when the link has ended and failed, or the client stops.
void Client::Watch(const std::shared_ptr<Link>& link) {
  constexpr int kSoonMillis = 20;  // so late a stream is released, or a question heard that nobody waits for
  for (bool soon = true;;) {
    pollfd watched[] = {
        {link->socket(), POLLIN, 0}, {link->daemon_pidfd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    ::poll(watched, 4, soon ? kSoonMillis : link->has_forgotten() ? 100 : 1000);
    if (watched[2].revents != 0) return;
    uint64_t rings = 0;
    if (watched[3].revents != 0) [[maybe_unused]]
      const ssize_t read = ::read(wake_.get(), &rings, sizeof rings);
    // Before looking: who comes after that wakes this thread.
    keeper_looks_.exchange(false, std::memory_order_acq_rel);
    const bool questions_come = link->Sweep();
    soon = GiveUpLate() || questions_come;
    if (soon) keeper_looks_.store(true, std::memory_order_release);
    if (watched[1].revents != 0) return link->Fail();
    if (watched[0].revents != 0) {
      // It may say why it is about to hang up. Copies may go on until it has.
      const absl::StatusOr<shm::Frame> said = shm::ReceiveFrame(link->socket());
      if (said.ok() || absl::IsNotFound(said.status())) continue;
      {
        MutexLock lock(&mutex_);
        link_ = nullptr;  // new calls miss at once
        state_ = KVIST_RECONNECTING;
      }
      link->ReleaseAllStreams();
      pollfd ends[] = {{link->daemon_pidfd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
      // A signal must not end this: pages count as released afterwards.
      const int64_t until = MonotonicNanos() + kDyingNanos;
      for (int64_t left = kDyingNanos; left > 0; left = until - MonotonicNanos()) {
        if (::poll(ends, 2, static_cast<int>(left / 1'000'000 + 1)) >= 0 || errno != EINTR) break;
      }
      if (ends[1].revents != 0) return;
      return link->Fail();
    }
  }
}

std::shared_ptr<Link> Client::link() const {
  MutexLock lock(&mutex_);
  return link_;
}

kvist_connection Client::connection(uint8_t* space_digest) const {
  MutexLock lock(&mutex_);
  if (space_digest != nullptr) std::memcpy(space_digest, digest_.data(), digest_.size());
  return state_;
}

absl::Status Client::WaitConnected(int64_t timeout_us) const {
  const int64_t deadline = timeout_us > 0 ? DeadlineNanos(timeout_us) : 0;
  while (true) {
    const uint32_t changes = state_changes_.load(std::memory_order_acquire);
    {
      MutexLock lock(&mutex_);
      if (state_ == KVIST_REFUSED) return refusal_;
      if (state_ == KVIST_CONNECTED) return absl::OkStatus();
    }
    if (MonotonicNanos() >= deadline)
      return absl::DeadlineExceededError(absl::StrCat("still no kvistd at ", registration_.socket()));
    shm::FutexWait(&state_changes_, changes, deadline);
  }
}

int64_t Client::DeadlineNanos(int64_t deadline_us, int64_t now_nanos) const {
  constexpr int64_t kMostUs = int64_t{3600} * 1'000'000;  // an hour is as good as for ever, and can't overflow
  return now_nanos + std::min(deadline_us > 0 ? deadline_us : default_deadline_us_, kMostUs) * 1000;
}

absl::Status Client::Away() {
  return absl::UnavailableError("kvistd is away: this is a miss; the client connects again by itself");
}

}  // namespace kvist::connector
