#include "daemon/session/reactor.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <variant>

#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/shm/futex.h"
#include "storage/base/status.h"

namespace kvist::session {
namespace {

constexpr uint64_t kInboxEvent = UINT64_MAX;  // epoll data of the inbox; doorbells have their session's id
constexpr uint32_t kSoonMax = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<Reactor>> Reactor::Create(Options options, core::Core* core, SlotMemory slots) {
  auto reactor = std::unique_ptr<Reactor>(new Reactor(options, core, std::move(slots)));
  reactor->epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!reactor->epoll_) return ErrnoStatus("epoll_create1 of the reactor", errno);
  reactor->wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!reactor->wake_) return ErrnoStatus("eventfd of the reactor", errno);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;  // edge-triggered: a ring of the bell needs no read afterwards
  event.data.u64 = kInboxEvent;
  if (::epoll_ctl(reactor->epoll_.get(), EPOLL_CTL_ADD, reactor->wake_.get(), &event) != 0)
    return ErrnoStatus("epoll_ctl of the reactor", errno);
  return reactor;
}

Reactor::Reactor(Options options, core::Core* core, SlotMemory slots)
    : options_(options), core_(*core), slots_(std::move(slots)) {}

Reactor::~Reactor() { KVIST_CHECK(!thread_.joinable()); }

void Reactor::Start() {
  KVIST_CHECK(engine_ != nullptr);
  thread_ = std::thread([this] { Loop(); });
  ::pthread_setname_np(thread_.native_handle(), "kvist-reactor");
}

void Reactor::Stop() {
  if (!thread_.joinable()) return;
  Run([this] {
    stopping_ = true;
    std::vector<SessionId> all;
    for (const auto& [id, session] : sessions_) all.push_back(id);
    for (const SessionId id : all) core_.Handle(core::SessionClosed{id}, &effects_);
    CarryOut();
  });
  thread_.join();
}

// ---- From other threads -----------------------------------------------------------------------------------------------------

void Reactor::WakeThread() {
  inbox_full_.store(true, std::memory_order_seq_cst);
  // Pairs with Sleep: either it sees the inbox, or this sees that it sleeps.
  if (asleep_.load(std::memory_order_seq_cst)) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }
}

void Reactor::Run(std::function<void()> task) {
  {
    absl::MutexLock lock(&inbox_mutex_);
    if (stopped_) return;
    tasks_.push_back(std::move(task));
  }
  WakeThread();
}

void Reactor::CopyDone(OpId op, absl::Status status) {
  {
    absl::MutexLock lock(&inbox_mutex_);
    copies_done_.emplace_back(op, std::move(status));
  }
  WakeThread();
}

void Reactor::Open(std::unique_ptr<EngineSession> session, std::function<void(absl::Status)> opened) {
  Run([this, session = std::make_shared<std::unique_ptr<EngineSession>>(std::move(session)), opened = std::move(opened)] {
    if (stopping_) return opened(absl::UnavailableError("kvistd is stopping"));
    EngineSession& s = **session;
    const SessionId id = s.identity().id;
    const Registration& registration = s.registration();
    sessions_.emplace(id, std::move(*session));
    opening_.emplace(id, opened);
    core_.Handle(core::SessionOpened{id, registration.instance, registration.role, registration.rank, registration.space},
                 &effects_);
    CarryOut();
  });
}

void Reactor::Close(SessionId id, std::function<void()> drained) {
  Run([this, id, drained = std::move(drained)] {
    if (Find(id) == nullptr) return drained();
    draining_[id].push_back(drained);
    std::erase_if(rounds_, [&](const Round& round) { return round.id == id; });
    core_.Handle(core::SessionClosed{id}, &effects_);
    CarryOut();
  });
}

// ---- The loop ---------------------------------------------------------------------------------------------------------------

void Reactor::Loop() {
  if (options_.cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(options_.cpu, &set);
    ::sched_setaffinity(0, sizeof set, &set);
  }
  idle_since_nanos_ = MonotonicNanos();
  while (!(stopping_ && sessions_.empty())) {
    now_nanos_ = MonotonicNanos();
    bool expired = false;
    if (core_.has_work() || now_nanos_ - ticked_nanos_ >= kTickNanos) {
      ticked_nanos_ = now_nanos_;
      core_.Handle(core::Tick{FromMonotonicNanos(now_nanos_)}, &effects_);
      expired = !effects_.empty();
      CarryOut();
    }
    if (worked_) idle_since_nanos_ = now_nanos_;  // the end of the last turn's work is the start of this turn
    worked_ = false;
    if (slept_) listened_nanos_ = now_nanos_;  // a sleep ends by listening
    slept_ = false;
    if (now_nanos_ - listened_nanos_ >= kListenNanos) Listen(0);
    const bool inbox = TakeInbox();
    const bool drained = DrainSessions();
    if (inbox || drained || expired) {
      if (now_nanos_ - idle_since_nanos_ <= kSpinNanos) {
        soon_ = std::min(soon_ + 1, kSoonMax);
      } else {
        soon_ /= 2;
      }
      worked_ = true;
      if (stopping_ || core_.has_work() || MaySpin()) continue;
      // Another turn would look at rings and inbox once more, as Sleep does.
      worked_ = false;
      idle_since_nanos_ = now_nanos_;
      Sleep();
      continue;
    }
    if (core_.has_work()) continue;
    if (now_nanos_ - idle_since_nanos_ < kSpinNanos && MaySpin()) {
      shm::SpinPause();
      continue;
    }
    Sleep();
  }
  absl::MutexLock lock(&inbox_mutex_);
  stopped_ = true;
  tasks_.clear();
}

bool Reactor::MaySpin() const {
  if (soon_ < kSoonMax / 2 || rounds_.empty()) return false;
  const uint32_t cpu = shm::CurrentCpu();
  for (const Round& round : rounds_) {
    if (round.session->header().client_cpu.load(std::memory_order_relaxed) == cpu) return false;
  }
  return true;
}

void Reactor::Sleep() {
  asleep_.store(true, std::memory_order_seq_cst);
  bool work = inbox_full_.load(std::memory_order_seq_cst);
  for (size_t i = 0; i < rounds_.size();) {
    Round& round = rounds_[i];
    if (!round.session->ring().Sleep()) {
      round.session->ring().Awake();
      work = true;
    } else if (now_nanos_ - round.last_work_nanos > kDozeNanos) {
      round = rounds_.back();  // its `asleep` stays set: the doorbell brings it back
      rounds_.pop_back();
      continue;
    }
    ++i;
  }
  if (!work) {
    // With leases or half stores about, look at the clock now and then; else only after a session's doze.
    Listen(core_.waits_for_clock() ? 50 : rounds_.empty() ? -1 : 1000);
  }
  slept_ = true;
  asleep_.store(false, std::memory_order_relaxed);
  for (const Round& round : rounds_) round.session->ring().Awake();
}

void Reactor::Listen(int timeout_ms) {
  listened_nanos_ = now_nanos_;
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, 64, timeout_ms);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 != kInboxEvent) Wake(SessionId{events[i].data.u64});
  }
}

void Reactor::Wake(SessionId id) {
  EngineSession* session = Find(id);
  if (session == nullptr || draining_.contains(id)) return;
  for (const Round& round : rounds_) {
    if (round.id == id) return;
  }
  rounds_.push_back({id, session, now_nanos_});
}

bool Reactor::TakeInbox() {
  if (!inbox_full_.load(std::memory_order_acquire)) return false;
  std::vector<std::function<void()>> tasks;
  std::vector<std::pair<OpId, absl::Status>> copies;
  {
    absl::MutexLock lock(&inbox_mutex_);
    inbox_full_.store(false, std::memory_order_relaxed);
    tasks.swap(tasks_);
    copies.swap(copies_done_);
  }
  for (auto& [op, status] : copies) {
    const auto copy = in_flight_.extract(op.Pack());
    KVIST_CHECK(!copy.empty());
    const InFlight& of = copy.mapped();
    EngineSession* session = Find(of.session);
    if (of.direction == core::Direction::kStore && session != nullptr && session->Abandoned(of.tag)) {
      status = absl::CancelledError("the engine gave the store up");
    }
    core_.Handle(core::CopyFinished{op, std::move(status)}, &effects_);
    CarryOut();
  }
  for (const std::function<void()>& task : tasks) task();
  return true;
}

bool Reactor::DrainSessions() {
  bool worked = false;
  const absl::Time now = FromMonotonicNanos(now_nanos_);
  for (size_t i = 0; i < rounds_.size(); ++i) {
    Round& round = rounds_[i];
    const uint32_t cpu = shm::CurrentCpu();
    std::atomic<uint32_t>& published = round.session->header().daemon_cpu;
    if (published.load(std::memory_order_relaxed) != cpu) published.store(cpu, std::memory_order_relaxed);
    const absl::StatusOr<uint32_t> drained = round.session->Drain(kEntriesPerTurn, now, &core_, &effects_);
    const SessionId id = round.id;
    if (drained.ok() && *drained > 0) {
      round.last_work_nanos = now_nanos_;
      worked = true;
    }
    CarryOut();
    if (!drained.ok()) {
      std::erase_if(rounds_, [&](const Round& r) { return r.id == id; });
      --i;
      draining_.try_emplace(id);  // not polled again
      broken_(id, drained.status());
    }
  }
  return worked;
}

// ---- Effects ----------------------------------------------------------------------------------------------------------------

EngineSession* Reactor::Find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void Reactor::CarryOut() {
  // Carrying an effect out never calls the core, so no effect is added meanwhile.
  for (core::Effect& effect : effects_) std::visit([this](auto& e) { Carry(e); }, effect);
  effects_.clear();
}

void Reactor::Carry(core::SessionAccepted& effect) {
  EngineSession* session = Find(effect.session);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = effect.session.value;
  KVIST_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, session->doorbell(), &event) == 0);
  const auto opened = opening_.extract(effect.session);
  opened.mapped()(absl::OkStatus());
}

void Reactor::Carry(core::SessionRefused& effect) {
  const auto opened = opening_.extract(effect.session);
  sessions_.erase(effect.session);
  opened.mapped()(effect.why);
}

void Reactor::Carry(core::SessionDrained& effect) {
  // The doorbell may be open in the client, too, so closing ours alone would leave it in the epoll set.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, Find(effect.session)->doorbell(), nullptr);
  std::erase_if(rounds_, [&](const Round& round) { return round.id == effect.session; });
  sessions_.erase(effect.session);
  if (const auto waiting = draining_.extract(effect.session); !waiting.empty()) {
    for (const std::function<void()>& drained : waiting.mapped()) drained();
  }
}

void Reactor::Carry(core::LookupAnswered& effect) { Find(effect.session)->Answer(effect); }

void Reactor::Carry(core::CopyStarted& effect) {
  std::vector<std::byte*> memory;
  memory.reserve(effect.slots.size());
  for (const SlotRef slot : effect.slots) memory.push_back(slots_(slot));
  in_flight_.emplace(effect.op.Pack(), InFlight{effect.session, effect.tag, effect.direction});
  engine_->Submit(Find(effect.session)->Begin(effect, std::move(memory)));
}

void Reactor::Carry(core::CopyCancelled& effect) { engine_->Cancel(effect.op); }

void Reactor::Carry(core::OpEnded& effect) { Find(effect.session)->Answer(effect); }

void Reactor::Carry(core::ClearEnded& effect) {
  const auto done = clears_.extract(effect.job);
  done.mapped()(effect.chunks);
}

void Reactor::Clear(std::optional<SpaceId> space, std::function<void(uint64_t)> done) {
  const uint64_t job = next_job_++;
  clears_.emplace(job, std::move(done));
  core_.Handle(core::ClearAsked{job, space}, &effects_);
  CarryOut();
}

}  // namespace kvist::session
