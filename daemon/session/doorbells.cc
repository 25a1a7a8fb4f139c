#include "daemon/session/doorbells.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::session {
namespace {

constexpr uint64_t kStopEvent = UINT64_MAX;  // epoll data; doorbells have their session's id

bool AddTo(int epoll, int fd, uint64_t data) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;  // edge-triggered: a ring of the bell needs no read afterwards
  event.data.u64 = data;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Doorbells>> Doorbells::Create(std::function<void(SessionId)> rung) {
  auto bells = std::unique_ptr<Doorbells>(new Doorbells(std::move(rung)));
  bells->epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!bells->epoll_) return ErrnoStatus("epoll_create1 of the doorbells", errno);
  bells->stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bells->stop_) return ErrnoStatus("eventfd of the doorbells", errno);
  if (!AddTo(bells->epoll_.get(), bells->stop_.get(), kStopEvent)) return ErrnoStatus("epoll_ctl of the doorbells", errno);
  bells->thread_ = std::thread([raw = bells.get()] { raw->Loop(); });
  ::pthread_setname_np(bells->thread_.native_handle(), "kvist-bells");
  return bells;
}

Doorbells::~Doorbells() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  KVIST_CHECK(::write(stop_.get(), &one, sizeof one) == sizeof one);
  thread_.join();
}

void Doorbells::Add(SessionId session, int doorbell) { KVIST_CHECK(AddTo(epoll_.get(), doorbell, session.value)); }

// The doorbell may be open in the client, too, so closing ours alone would leave it in the epoll set.
void Doorbells::Remove(int doorbell) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, doorbell, nullptr); }

void Doorbells::Loop() {
  for (;;) {
    epoll_event events[64];
    const int count = ::epoll_wait(epoll_.get(), events, 64, -1);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kStopEvent) return;
      rung_(SessionId{events[i].data.u64});
    }
  }
}

}  // namespace kvist::session
