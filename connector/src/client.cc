#include "connector/src/client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "connector/src/error.h"
#include "storage/base/clock.h"
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

absl::Status Away() { return absl::UnavailableError("kvistd is away: this is a miss; the client connects again by itself"); }

template <class T>
std::span<const std::byte> BytesOf(std::span<const T> values) {
  return std::as_bytes(values);
}

}  // namespace

// ---- Connecting -------------------------------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const kvist_options& options) {
  KVIST_ASSIGN_OR_RETURN(Registration registration, Registration::Create(options));
  auto client = std::unique_ptr<Client>(new Client(std::move(registration)));
  if (options.deadline_us > 0) client->default_deadline_us_ = options.deadline_us;
  client->stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!client->stop_) return ErrnoStatus("eventfd", errno);

  // The first handshake runs on the caller's thread: the engine's write_page is called during kvist_connect and never later.
  const int64_t deadline =
      MonotonicNanos() + (options.connect_timeout_us > 0 ? options.connect_timeout_us : 1'000'000) * 1000;
  for (int64_t pause = kRetryFirstNanos; true; pause = std::min(2 * pause, kRetryMostNanos)) {
    absl::StatusOr<std::shared_ptr<Link>> link = Link::Connect(&client->registration_, deadline);
    if (link.ok()) {
      client->SetLink(*std::move(link), KVIST_CONNECTED);
      break;
    }
    const bool away = absl::IsUnavailable(link.status()) || absl::IsDeadlineExceeded(link.status());
    if (!away) return link.status();
    if (MonotonicNanos() + pause >= deadline) break;
    client->Pause(pause);
  }
  if (client->registration_.worker() && !client->registration_.probed) {
    KVIST_RETURN_IF_ERROR(client->registration_.ProbeLocally());
    client->registration_.probed = true;
  }
  client->keeper_ = std::thread([raw = client.get()] { raw->Keep(); });
  ::pthread_setname_np(client->keeper_.native_handle(), "kvist-keeper");
  return client;
}

Client::~Client() {
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
    if (op.kind == Kind::kStore) {
      op.link->Abandon(op.ticket);
    } else {
      shm::Entry cancel{};
      cancel.opcode = shm::Opcode::kCancel;
      cancel.cell = op.ticket.cell;
      cancel.sequence = op.ticket.sequence;
      op.link->Tell(cancel);
      op.link->Await(op.ticket, UINT32_MAX, deadline, Link::Spin::kNo);
    }
  }
  if (keeper_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    keeper_.join();
  }
}

bool Client::Pause(int64_t nanos) {
  pollfd stop{stop_.get(), POLLIN, 0};
  return ::poll(&stop, 1, static_cast<int>(nanos / 1'000'000)) == 0;
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
    absl::StatusOr<std::shared_ptr<Link>> next = Link::Connect(&registration_, MonotonicNanos() + kHandshakeNanos);
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
  while (true) {
    pollfd watched[] = {{link->socket(), POLLIN, 0}, {link->daemon_pidfd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    ::poll(watched, 3, link->has_forgotten() ? 100 : 1000);
    if (watched[2].revents != 0) return;
    link->Sweep();
    if (watched[1].revents != 0) return link->Fail();
    if (watched[0].revents != 0) {  // a hang-up: after Welcome the daemon sends nothing
      {
        MutexLock lock(&mutex_);
        link_ = nullptr;  // new calls miss at once
        state_ = KVIST_RECONNECTING;
      }
      pollfd daemon{link->daemon_pidfd(), POLLIN, 0};
      ::poll(&daemon, 1, static_cast<int>(kDyingNanos / 1'000'000));
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
  const int64_t deadline = DeadlineNanos(timeout_us);
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

int64_t Client::DeadlineNanos(int64_t deadline_us) const {
  constexpr int64_t kMostUs = int64_t{3600} * 1'000'000;  // an hour is as good as for ever, and can't overflow
  return MonotonicNanos() + std::min(deadline_us > 0 ? deadline_us : default_deadline_us_, kMostUs) * 1000;
}

// ---- Lookups ----------------------------------------------------------------------------------------------------------------

absl::Status Client::Lookup(std::span<const ChunkKey> keys, int64_t lease_us, int64_t deadline_us, kvist_hit* hit) {
  *hit = kvist_hit{};
  if (keys.empty()) return absl::OkStatus();
  const std::shared_ptr<Link> link = this->link();
  if (link == nullptr) return Away();
  keys = keys.first(std::min<size_t>(keys.size(), shm::kKeysMax));
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kLookup;
  entry.keys = static_cast<uint32_t>(keys.size());
  entry.deadline_nanos = DeadlineNanos(deadline_us);
  entry.lease_nanos = std::clamp<int64_t>(lease_us, 0, int64_t{3600} * 1'000'000) * 1000;
  const std::span<const std::byte> arguments[] = {BytesOf(keys)};
  KVIST_ASSIGN_OR_RETURN(const Link::Ticket ticket, link->Begin(entry, arguments));
  const uint64_t progress = link->Await(ticket, UINT32_MAX, entry.deadline_nanos, Link::Spin::kBriefly);
  if (shm::PhaseOf(progress) != shm::Phase::kEnded) {
    link->Forget(ticket);
    return absl::DeadlineExceededError("kvistd didn't answer the lookup in time: this is a miss");
  }
  const shm::Cell& cell = link->cell(ticket);
  const auto code = static_cast<absl::StatusCode>(cell.status);
  absl::Status status;
  if (code == absl::StatusCode::kOk) {
    hit->chunks = std::min<uint32_t>(cell.copied, entry.keys);
    hit->lease = cell.lease;
  } else {
    status = absl::Status(code, absl::string_view(cell.message, ::strnlen(cell.message, sizeof cell.message)));
  }
  link->Finish(ticket);
  return status;
}

uint32_t Client::FirstNeeded(uint32_t group, uint32_t chunks) const {
  const auto& groups = registration_.groups();
  return group < groups.size() ? groups[group].reuse.FirstNeeded(chunks) : 0;
}

absl::Status Client::Release(kvist_lease lease) {
  if (lease == 0) return absl::OkStatus();
  const std::shared_ptr<Link> link = this->link();
  if (link == nullptr) return absl::OkStatus();  // it ended with the daemon
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kRelease;
  entry.lease = lease;
  link->Tell(entry);
  return absl::OkStatus();
}

// ---- Loads and stores -------------------------------------------------------------------------------------------------------

absl::Status Client::NoGroup(uint32_t group) const {
  return absl::InvalidArgumentError(
      absl::StrCat("group is ", group, ", the space has ", registration_.groups().size(), " cache groups"));
}

absl::StatusOr<kvist_op> Client::Load(const kvist_load_args& args) {
  if (!registration_.worker()) return absl::FailedPreconditionError("this client is a scheduler: load from a worker");
  if (args.lease == 0) return absl::InvalidArgumentError("lease is 0: a load needs the lease of a lookup");
  if (args.chunk_count == 0 || args.chunk_count > shm::kKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_count is ", args.chunk_count, ", allowed are 1 to ", shm::kKeysMax));
  }
  if (args.group >= registration_.groups().size()) return NoGroup(args.group);
  const Registration::Group& group = registration_.groups()[args.group];
  const uint64_t pages = uint64_t{args.chunk_count} * group.pages_per_chunk;
  if (args.pages == nullptr || args.page_count != pages) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_count is ", args.page_count, ", ", args.chunk_count, " chunks have ", pages, " pages"));
  }
  if (args.first_layer >= group.layers || args.layer_count > group.layers - args.first_layer) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers [", args.first_layer, ", +", args.layer_count, ") of ", group.layers));
  }
  const std::shared_ptr<Link> link = this->link();
  if (link == nullptr) return Away();
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kLoad;
  entry.group = static_cast<uint16_t>(args.group);
  entry.lease = args.lease;
  entry.pages = static_cast<uint32_t>(pages);
  entry.first_chunk = args.first_chunk;
  entry.chunks = args.chunk_count;
  entry.layer.first_layer = args.first_layer;
  entry.layer.layers = args.layer_count;
  entry.deadline_nanos = DeadlineNanos(args.deadline_us);
  const std::span<const std::byte> arguments[] = {BytesOf(std::span(args.pages, args.page_count))};
  KVIST_ASSIGN_OR_RETURN(const Link::Ticket ticket, link->Begin(entry, arguments));
  return Remember({link, ticket, Kind::kLoad, GivenUp::kNo, entry.deadline_nanos});
}

absl::StatusOr<kvist_op> Client::Store(const kvist_store_args& args) {
  if (!registration_.worker()) return absl::FailedPreconditionError("this client is a scheduler: store from a worker");
  if (args.keys == nullptr || args.first_chunk >= args.key_count || args.key_count - args.first_chunk > shm::kKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunks [", args.first_chunk, ", ", args.key_count, "): allowed are 1 to ", shm::kKeysMax, " at once"));
  }
  const uint64_t chunks = args.key_count - args.first_chunk;
  if (args.group >= registration_.groups().size()) return NoGroup(args.group);
  const uint64_t pages = chunks * registration_.groups()[args.group].pages_per_chunk;
  if (args.pages == nullptr || args.page_count != pages) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_count is ", args.page_count, ", ", chunks, " chunks have ", pages, " pages"));
  }
  const std::shared_ptr<Link> link = this->link();
  if (link == nullptr) return Away();
  const uint32_t parent = args.first_chunk > 0 ? 1 : 0;
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kStore;
  entry.group = static_cast<uint16_t>(args.group);
  entry.has_parent = parent;
  entry.keys = static_cast<uint32_t>(chunks + parent);
  entry.pages = static_cast<uint32_t>(pages);
  entry.deadline_nanos = DeadlineNanos(args.deadline_us);
  const std::span<const std::byte> arguments[] = {BytesOf(std::span(args.keys + args.first_chunk - parent, chunks + parent)),
                                                  BytesOf(std::span(args.pages, args.page_count))};
  KVIST_ASSIGN_OR_RETURN(const Link::Ticket ticket, link->Begin(entry, arguments));
  return Remember({link, ticket, Kind::kStore, GivenUp::kNo, entry.deadline_nanos});
}

// ---- Operations -------------------------------------------------------------------------------------------------------------

kvist_op Client::Remember(Op op) {
  MutexLock lock(&mutex_);
  if (free_ops_.empty()) {
    free_ops_.push_back(static_cast<uint32_t>(ops_.size()));
    ops_.emplace_back();
  }
  const uint32_t index = free_ops_.back();
  free_ops_.pop_back();
  op.generation = ops_[index].generation + 1;
  ops_[index] = std::move(op);
  return uint64_t{ops_[index].generation} << 32 | index;
}

std::optional<Client::Op> Client::FindOp(kvist_op handle) const {
  MutexLock lock(&mutex_);
  const auto index = static_cast<uint32_t>(handle);
  if (index >= ops_.size() || ops_[index].generation != handle >> 32 || ops_[index].generation % 2 == 0) return std::nullopt;
  return ops_[index];
}

bool Client::TakeOp(kvist_op handle) {
  MutexLock lock(&mutex_);
  const auto index = static_cast<uint32_t>(handle);
  if (index >= ops_.size() || ops_[index].generation != handle >> 32) return false;
  const uint32_t generation = ops_[index].generation + 1;
  ops_[index] = Op{};
  ops_[index].generation = generation;
  free_ops_.push_back(index);
  return true;
}

void Client::GiveUp(kvist_op handle, Op* op, GivenUp how) {
  op->given_up = how;
  {
    MutexLock lock(&mutex_);
    const auto index = static_cast<uint32_t>(handle);
    if (index >= ops_.size() || ops_[index].generation != op->generation || ops_[index].given_up != GivenUp::kNo) return;
    ops_[index].given_up = how;
  }
  if (op->kind == Kind::kStore) op->link->Abandon(op->ticket);
  shm::Entry cancel{};
  cancel.opcode = shm::Opcode::kCancel;
  cancel.cell = op->ticket.cell;
  cancel.sequence = op->ticket.sequence;
  op->link->Tell(cancel);
}

absl::Status Client::Cancel(kvist_op handle) {
  std::optional<Op> op = FindOp(handle);
  if (!op.has_value()) return absl::OkStatus();  // it has ended and was asked for
  if (op->given_up == GivenUp::kNo && !Link::Over(op->ticket, op->link->Progress(op->ticket), UINT32_MAX))
    GiveUp(handle, &*op, GivenUp::kCancelled);
  return absl::OkStatus();
}

absl::Status Client::Wait(kvist_op handle, uint32_t layers, int64_t timeout_us, kvist_result* result) {
  const auto unknown = [&] {
    result->status = KVIST_INVALID_ARGUMENT;
    result->pages_released = 1;
    return absl::InvalidArgumentError("no such operation: it has ended and its result was given out, or it never began");
  };
  const std::optional<Op> found = FindOp(handle);
  if (!found.has_value()) return unknown();
  Op op = *found;
  uint64_t progress = op.link->Progress(op.ticket);
  const auto over = [&] { return Link::Over(op.ticket, progress, layers); };
  const bool store_given_up =
      op.kind == Kind::kStore && op.given_up != GivenUp::kNo;  // its result is known without the daemon
  if (!over() && !store_given_up) {
    const int64_t until = timeout_us > 0 ? DeadlineNanos(timeout_us) : 0;
    // A load that is late or cancelled is still waited for: its pages are what the caller wants back.
    const int64_t stop = op.given_up == GivenUp::kNo ? std::min(until, op.deadline_nanos) : until;
    if (stop > 0 && timeout_us > 0) progress = op.link->Await(op.ticket, layers, stop, Link::Spin::kNo);
    if (!over() && op.given_up == GivenUp::kNo && MonotonicNanos() >= op.deadline_nanos) GiveUp(handle, &op, GivenUp::kLate);
  }
  if (!Fill(handle, op, progress, result)) return unknown();
  if (result->status == KVIST_PENDING && !over()) {
    return timeout_us > 0 ? absl::DeadlineExceededError("the operation is still under way") : absl::OkStatus();
  }
  return absl::OkStatus();
}

bool Client::Fill(kvist_op handle, const Op& op, uint64_t progress, kvist_result* result) {
  const size_t size = result->struct_size;
  *result = kvist_result{};
  result->struct_size = size;
  if (shm::PhaseOf(progress) != shm::Phase::kEnded) {
    result->layers = shm::LayersOf(progress);
    if (op.given_up == GivenUp::kNo) {
      result->status = KVIST_PENDING;
      return true;
    }
    result->status = op.given_up == GivenUp::kCancelled ? KVIST_CANCELLED : KVIST_DEADLINE_EXCEEDED;
    Report(absl::DeadlineExceededError(op.given_up == GivenUp::kCancelled ? "the operation was cancelled"
                                                                          : "the operation's deadline has passed"));
    if (op.kind == Kind::kStore) {
      result->pages_released = 1;
      if (!TakeOp(handle)) return false;
      op.link->Forget(op.ticket);
    }
    return true;
  }
  if (!TakeOp(handle)) return false;
  const shm::Cell& cell = op.link->cell(op.ticket);
  const auto code = static_cast<absl::StatusCode>(cell.status);
  result->status = CodeOf(code);
  result->pages_released = 1;
  result->chunks_copied = cell.copied;
  result->chunks_skipped = cell.skipped;
  result->chunks_refused = cell.refused;
  result->layers = shm::LayersOf(progress);
  if (code != absl::StatusCode::kOk)
    Report(absl::Status(code, absl::string_view(cell.message, ::strnlen(cell.message, sizeof cell.message))));
  op.link->Finish(op.ticket);
  return true;
}

}  // namespace kvist::connector
