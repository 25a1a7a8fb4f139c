#include "connector/src/link.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/session.pb.h"
#include "storage/base/clock.h"
#include "storage/base/shm/frame_socket.h"
#include "storage/base/shm/futex.h"
#include "storage/base/status.h"

namespace kvist::connector {
namespace {

// As long as a wake-up across cores takes on a VM (reference/limits.md: 30 to 55 us): spinning so long never costs more than it may save.
constexpr int64_t kSpinNanos = 50'000;
// And what kvistd takes for a key of a lookup (kvist-bench lookup: 0.1 to 0.2 us): who sleeps while the answer is being made sleeps past it. Up to
// what 1,000 keys take; beyond that a wake-up is a small part of it.
constexpr int64_t kKeyNanos = 200;
constexpr uint32_t kSpinKeysMax = 1000;
constexpr uint32_t kSpinPaysMax = 8;
constexpr int64_t kGpuHandshakeNanos = 20'000'000'000;
// So much of the ring and of the arena lies unheard at most: the rest is for those who want an answer now.
constexpr uint32_t kUnheardMax = shm::kEntries / 8;
constexpr uint64_t kUnheardBytesMax = shm::kArenaBytes.value / 8;

const std::atomic<uint32_t>* FutexWord(const shm::Cell& cell) {
  return reinterpret_cast<const std::atomic<uint32_t>*>(&cell.progress);
}

constexpr int64_t kDoorNanos = 300'000'000;  // then it is as good as away, and tried again later

absl::StatusOr<UniqueFd> ConnectTo(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return absl::InvalidArgumentError(
        absl::StrCat("the socket's path is longer than ", sizeof address.sun_path - 1, " bytes: ", path));
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoStatus("socket", errno);
  const auto connect = [&] { return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address); };
  int connected = connect();
  // Others stand before the door, more than the kernel lets wait: each that is let in makes room for one.
  const int64_t until = MonotonicNanos() + kDoorNanos;
  while (connected != 0 && errno == EAGAIN && MonotonicNanos() < until) {
    ::usleep(1000);
    connected = connect();
  }
  if (connected != 0) {
    if (errno == EACCES || errno == EPERM) {
      return absl::PermissionDeniedError(
          absl::StrCat("this user may not connect to ", path, ": add it to the group of session.socket_group"));
    }
    return absl::UnavailableError(absl::StrCat("no kvistd at ", path, ": ", std::strerror(errno)));
  }
  return fd;
}

// Lets the daemon into this process where yama restricts that to a process's ancestors; elsewhere prctl knows nothing of it.
void Allow(int socket) {
  ucred daemon{};
  socklen_t size = sizeof daemon;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &daemon, &size) != 0 || daemon.pid <= 0) return;
  (void)::prctl(PR_SET_PTRACER, static_cast<unsigned long>(daemon.pid), 0, 0, 0);  // kvistd says it when it is kept out
}

// The daemon's next frame. It may be long in coming: the first engine on a GPU waits for a context, and a daemon may stand still.
absl::StatusOr<shm::Frame> NextFrame(int socket, int64_t deadline_nanos, int stop, session::v1::DaemonFrame* frame) {
  while (true) {
    absl::StatusOr<shm::Frame> received = shm::ReceiveFrame(socket);
    if (received.ok()) {
      if (!frame->ParseFromString(received->bytes))
        return absl::FailedPreconditionError("kvistd sent something that is no DaemonFrame: versions differ");
      return received;
    }
    if (!absl::IsNotFound(received.status())) return received.status();
    const int64_t left = deadline_nanos - MonotonicNanos();
    if (left <= 0) return absl::DeadlineExceededError("kvistd doesn't answer the handshake");
    pollfd waiting[] = {{socket, POLLIN, 0}, {stop, POLLIN, 0}};
    ::poll(waiting, 2, static_cast<int>(left / 1'000'000 + 1));
    if (waiting[1].revents != 0) return absl::UnavailableError("the client is being disconnected");
  }
}

}  // namespace

Link::~Link() {
  if (board_ != nullptr) EngineGpu::Board::Retire(std::move(board_));
}

absl::StatusOr<std::shared_ptr<Link>> Link::Connect(Registration* registration, int64_t deadline_nanos, int stop) {
  auto link = std::shared_ptr<Link>(new Link);
  KVIST_ASSIGN_OR_RETURN(link->socket_, ConnectTo(registration->socket()));
  const int socket = link->socket_.get();
  if (registration->has_process_regions()) Allow(socket);
  // Somebody is there; the first engine on a GPU has it open a context, for all workers one after the other.
  if (registration->gpu() != nullptr) deadline_nanos = std::max(deadline_nanos, MonotonicNanos() + kGpuHandshakeNanos);
  session::v1::ClientFrame hello;
  registration->FillHello(hello.mutable_hello());
  KVIST_RETURN_IF_ERROR(shm::SendFrame(socket, hello.SerializeAsString(), registration->fds()));
  session::v1::DaemonFrame answer;
  KVIST_ASSIGN_OR_RETURN(shm::Frame frame, NextFrame(socket, deadline_nanos, stop, &answer));
  for (size_t group = 0; answer.has_probe() && group < registration->groups().size() && !registration->probed; ++group) {
    if (answer.probe().group() != group)
      return absl::FailedPreconditionError("kvistd probes groups out of turn: versions differ");
    KVIST_RETURN_IF_ERROR(registration->WriteProbe(group, answer.probe().nonce()));
    session::v1::ClientFrame written;
    written.mutable_probe_written();
    KVIST_RETURN_IF_ERROR(shm::SendFrame(socket, written.SerializeAsString()));
    KVIST_ASSIGN_OR_RETURN(frame, NextFrame(socket, deadline_nanos, stop, &answer));
  }
  if (answer.has_refused()) {
    return absl::Status(static_cast<absl::StatusCode>(answer.refused().code()),
                        absl::StrCat("kvistd refuses: ", answer.refused().message()));
  }
  const session::v1::Welcome& welcome = answer.welcome();
  if (!answer.has_welcome() || frame.fds.size() != 3 || welcome.space_digest().size() != link->space_digest_.size() ||
      welcome.memory_proof().size() > Registration::kProofBytesMax) {
    return absl::FailedPreconditionError("kvistd's answer to Hello makes no sense: connector and kvistd differ in version");
  }
  std::memcpy(link->space_digest_.data(), welcome.space_digest().data(), link->space_digest_.size());
  KVIST_ASSIGN_OR_RETURN(shm::SessionMemory memory, shm::SessionMemory::Map(frame.fds[0].get()));
  link->memory_ = std::make_shared<const shm::SessionMemory>(std::move(memory));
  if (registration->gpu() != nullptr) {
    absl::StatusOr<std::shared_ptr<EngineGpu::Board>> board = EngineGpu::MakeBoard(registration->gpu(), link->memory_);
    link->no_board_ = board.status();
    if (board.ok()) link->board_ = *std::move(board);
  }
  link->doorbell_ = std::move(frame.fds[1]);
  link->daemon_pidfd_ = std::move(frame.fds[2]);
  MutexLock lock(&link->mutex_);
  link->ring_.emplace(link->memory_.get(), link->doorbell_.get());
  for (uint32_t cell = shm::kCells; cell-- > 0;) link->free_cells_.push_back(cell);
  link->sequences_.resize(shm::kCells);
  link->busy_.resize(shm::kCells);
  link->to_be_written_.resize(shm::kCells);
  registration->probed = true;
  registration->memory_proof = welcome.memory_proof();
  return link;
}

// ---- Submitting -------------------------------------------------------------------------------------------------------------

bool Link::SubmitLocked(shm::Entry* entry, std::span<const std::span<const std::byte>> arguments) {
  size_t size = 0;
  for (const auto& part : arguments) size += part.size();
  const std::optional<std::span<std::byte>> room = ring_->Reserve(size, entry);
  if (!room.has_value()) {
    WakeForUnheard();  // which may be what takes the room
    return false;
  }
  std::byte* out = room->data();
  for (const auto& part : arguments) {
    if (!part.empty()) std::memcpy(out, part.data(), part.size());
    out += part.size();
  }
  const bool question = entry->opcode == shm::Opcode::kWhere;
  const bool has_time = question || entry->opcode == shm::Opcode::kRelease || entry->opcode == shm::Opcode::kHint ||
                        entry->opcode == shm::Opcode::kPrefill;
  question_left_ |= question;
  if (has_time && unheard_ < kUnheardMax && unheard_bytes_ + size <= kUnheardBytesMax) {
    ring_->Leave(*entry);
    ++unheard_;
    unheard_bytes_ += size;
  } else {
    ring_->Submit(*entry);
    unheard_ = 0;
    unheard_bytes_ = 0;
  }
  return true;
}

void Link::WakeForUnheard() {
  if (unheard_ > 0 && !failed()) ring_->Wake();
  unheard_ = 0;
  unheard_bytes_ = 0;
}

absl::StatusOr<Link::Ticket> Link::Begin(shm::Entry* entry, std::span<const std::span<const std::byte>> arguments,
                                         int64_t asked_nanos, Room room) {
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (failed()) return absl::UnavailableError("kvistd is away");
      if (free_cells_.empty()) SweepLocked();
      if (free_cells_.empty()) {
        return absl::ResourceExhaustedError(absl::StrCat(
            shm::kCells, " operations are in flight in this session: wait for some, and ask for each until it has ended"));
      }
      const uint32_t index = free_cells_.back();
      const uint32_t sequence = sequences_[index] + 1;
      shm::Cell* cell = memory_->cell(index);
      cell->abandoned.store(0, std::memory_order_relaxed);
      cell->asked_nanos.store(asked_nanos, std::memory_order_relaxed);
      const uint64_t begun = shm::PackProgress(sequence, shm::Phase::kPending, 0);
      cell->progress.store(begun, std::memory_order_relaxed);
      if (board_ != nullptr) shm::Raise(&cell->stream_progress, begun);
      entry->cell = index;
      entry->sequence = sequence;
      if (SubmitLocked(entry, arguments)) {
        free_cells_.pop_back();
        sequences_[index] = sequence;
        busy_[index] = true;
        return Ticket{index, sequence};
      }
    }
    if (room == Room::kNow) return absl::ResourceExhaustedError("kvistd doesn't keep up: its ring is full");
    // Rare; look again soon, up to the deadline.
    if (MonotonicNanos() >= entry->deadline_nanos)
      return absl::DeadlineExceededError("kvistd doesn't keep up: no room in the ring in time");
    const timespec pause{0, 50'000};
    ::nanosleep(&pause, nullptr);
  }
}

void Link::Tell(shm::Entry entry, std::span<const std::span<const std::byte>> arguments) {
  MutexLock lock(&mutex_);
  if (failed() || SubmitLocked(&entry, arguments)) return;
  // What is given back must get there: an allocation that the daemon never hears of again stays until the session ends.
  // And a copy that waits for a stream ends by being cancelled.
  if (entry.opcode == shm::Opcode::kFree || entry.opcode == shm::Opcode::kRelease || entry.opcode == shm::Opcode::kCancel)
    unsent_.push_back(entry);
}

// ---- Waiting ----------------------------------------------------------------------------------------------------------------

uint64_t Link::Progress(Ticket ticket) const { return cell(ticket).progress.load(std::memory_order_acquire); }

int64_t Link::SpinNanos(uint32_t keys) { return kSpinNanos + kKeyNanos * std::min(keys, kSpinKeysMax); }

uint64_t Link::Await(Ticket ticket, uint32_t layers, int64_t deadline_nanos, int64_t spin_nanos) {
  const auto over = [&](uint64_t now) { return Over(ticket, now, layers); };
  uint64_t progress = Progress(ticket);
  if (over(progress)) return progress;
  shm::Cell* cell = memory_->cell(ticket.cell);
  const uint32_t pays = spin_pays_.load(std::memory_order_relaxed);
  // On the daemon's core spinning only keeps it from running. When spinning has failed lately it is tried now and then (it costs
  // little), in case the daemon has become quick again.
  const bool other_core = memory_->header()->daemon_cpu.load(std::memory_order_relaxed) != shm::CurrentCpu();
  if (spin_nanos > 0 && other_core && (pays > 0 || ticket.sequence % 16 == 0)) {
    int64_t until = 0;
    while (true) {
      for (int i = 0; i < 32; ++i) {
        progress = Progress(ticket);
        if (over(progress)) {
          if (pays < kSpinPaysMax) spin_pays_.store(pays + 1, std::memory_order_relaxed);
          return progress;
        }
        shm::SpinPause();
      }
      const int64_t now = MonotonicNanos();  // only now: a quick answer has no need of a clock
      if (until == 0) until = std::min(deadline_nanos, now + spin_nanos);
      if (now >= until) break;
    }
    if (pays > 0) spin_pays_.store(pays - 1, std::memory_order_relaxed);
  }
  cell->waiters.fetch_add(1, std::memory_order_seq_cst);
  progress = cell->progress.load(std::memory_order_seq_cst);
  while (!over(progress)) {
    shm::FutexWait(FutexWord(*cell), static_cast<uint32_t>(progress), deadline_nanos);
    progress = cell->progress.load(std::memory_order_seq_cst);
    if (!over(progress) && MonotonicNanos() >= deadline_nanos) break;
  }
  cell->waiters.fetch_sub(1, std::memory_order_relaxed);
  return progress;
}

// ---- Streams ----------------------------------------------------------------------------------------------------------------

absl::Status Link::HasStreams() const {
  if (board_ != nullptr) return absl::OkStatus();
  if (no_board_.ok())
    return absl::FailedPreconditionError("this client's KV memory is no GPU's: there is no stream to wait for");
  return absl::FailedPreconditionError(absl::StrCat("this GPU's streams can't reach what this process shares with kvistd (",
                                                    no_board_.message(), "): see the memlock limit"));
}

absl::Status Link::WaitOnStream(Ticket ticket, uint32_t layers, void* stream) {
  KVIST_RETURN_IF_ERROR(MayGive(stream));
  const auto wanted = static_cast<uint32_t>(std::min<uint64_t>(layers, shm::kLayersOfAll));
  return board_->Wait(static_cast<cuda::driver::Stream>(stream), cell(ticket).stream_progress,
                      shm::PackProgress(ticket.sequence, shm::Phase::kPending, wanted));
}

absl::Status Link::MayGive(void* stream) {
  KVIST_RETURN_IF_ERROR(HasStreams());
  return board_->MayGive(static_cast<cuda::driver::Stream>(stream));
}

absl::Status Link::PagesReady(Ticket ticket, uint32_t layers, void* stream) {
  KVIST_RETURN_IF_ERROR(MayGive(stream));
  const uint64_t value = shm::PackReady(ticket.sequence, layers);
  {
    MutexLock lock(&mutex_);
    if (!busy_[ticket.cell] || sequences_[ticket.cell] != ticket.sequence) return absl::OkStatus();  // it is over
    if (to_be_written_[ticket.cell] != 0 && shm::HasReached(to_be_written_[ticket.cell], value))
      return absl::InvalidArgumentError("pages are ready for growing numbers of layers");
    // The cell stays this operation's until that is written. Before it is tried: what fails may have been given all the same.
    to_be_written_[ticket.cell] = value;
  }
  // Without the mutex: the driver blocks while the stream's queue is full, which may be waiting for what the keeper releases.
  return board_->Write(static_cast<cuda::driver::Stream>(stream), &memory_->cell(ticket.cell)->ready, value);
}

void Link::ClaimBus(int64_t until_nanos) {
  memory_->header()->bus_claimed_until_nanos.store(until_nanos, std::memory_order_relaxed);
}

void Link::ReleaseStreams(Ticket ticket) {
  if (board_ == nullptr) return;
  shm::Raise(&memory_->cell(ticket.cell)->stream_progress,
             shm::PackProgress(ticket.sequence, shm::Phase::kEnded, static_cast<uint32_t>(shm::kLayersOfAll)));
}

void Link::ReleaseAllStreams() {
  MutexLock lock(&mutex_);
  for (uint32_t index = 0; index < shm::kCells; ++index) {
    if (busy_[index]) ReleaseStreams({index, sequences_[index]});
  }
}

bool Link::StreamsAreThrough(uint32_t cell) {
  const uint64_t value = to_be_written_[cell];
  if (value != 0 && !shm::HasReached(memory_->cell(cell)->ready.load(std::memory_order_acquire), value)) return false;
  to_be_written_[cell] = 0;
  return true;
}

// ---- Cells ------------------------------------------------------------------------------------------------------------------

void Link::Finish(Ticket ticket) {
  MutexLock lock(&mutex_);
  // What a stream still writes there would be taken for the next operation's.
  if (!StreamsAreThrough(ticket.cell)) return forgotten_.push_back({ticket, shm::Opcode::kStore});
  busy_[ticket.cell] = false;
  free_cells_.push_back(ticket.cell);
}

void Link::Forget(Ticket ticket, shm::Opcode opcode) {
  MutexLock lock(&mutex_);
  forgotten_.push_back({ticket, opcode});
}

void Link::Abandon(Ticket ticket) {
  MutexLock lock(&mutex_);
  if (!busy_[ticket.cell] || sequences_[ticket.cell] != ticket.sequence) return;  // over, and the cell perhaps another one's
  // seq_cst: the engine's later writes to the pages come after this; the daemon looks after it has copied.
  memory_->cell(ticket.cell)->abandoned.store(1, std::memory_order_seq_cst);
}

bool Link::has_forgotten() const {
  MutexLock lock(&mutex_);
  return !forgotten_.empty() || !unsent_.empty();
}

bool Link::Sweep() {
  MutexLock lock(&mutex_);
  SweepLocked();
  WakeForUnheard();
  return std::exchange(question_left_, false);
}

void Link::Hurry() {
  MutexLock lock(&mutex_);
  WakeForUnheard();
}

void Link::SweepLocked() {
  std::erase_if(unsent_, [&](shm::Entry& entry) {
    mutex_.AssertHeld();
    return failed() || SubmitLocked(&entry, {});
  });
  std::erase_if(forgotten_, [&](const Forgotten& forgotten) {
    mutex_.AssertHeld();
    const Ticket ticket = forgotten.ticket;
    if (shm::PhaseOf(Progress(ticket)) != shm::Phase::kEnded || !StreamsAreThrough(ticket.cell)) return false;
    if (const uint64_t handle = cell(ticket).lease; handle != 0 && !failed()) {
      shm::Entry release{};
      release.opcode = forgotten.opcode == shm::Opcode::kAllocate ? shm::Opcode::kFree : shm::Opcode::kRelease;
      release.lease = handle;
      if (!SubmitLocked(&release, {})) return false;  // next time
    }
    busy_[ticket.cell] = false;
    free_cells_.push_back(ticket.cell);
    return true;
  });
}

void Link::Fail() {
  MutexLock lock(&mutex_);
  failed_.store(true, std::memory_order_release);
  for (uint32_t index = 0; index < shm::kCells; ++index) {
    if (!busy_[index]) continue;
    shm::Cell* cell = memory_->cell(index);
    ReleaseStreams({index, sequences_[index]});
    const uint64_t progress = cell->progress.load(std::memory_order_acquire);
    if (shm::PhaseOf(progress) == shm::Phase::kEnded) continue;
    constexpr char kMessage[] = "kvistd went away";
    std::memcpy(cell->message, kMessage, sizeof kMessage);
    cell->status = static_cast<uint32_t>(absl::StatusCode::kUnavailable);
    cell->copied = cell->skipped = cell->refused = 0;
    cell->lease = 0;
    cell->progress.store(shm::PackProgress(sequences_[index], shm::Phase::kEnded, 0), std::memory_order_seq_cst);
    shm::FutexWakeAll(FutexWord(*cell));
  }
}

}  // namespace kvist::connector
