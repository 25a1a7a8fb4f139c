#include "daemon/rpc/tcp_door.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/rpc/strangers.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::rpc {
namespace {

constexpr int kAtOnce = 64;  // then it is the turn of those that end
constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr absl::Duration kSayEvery = absl::Minutes(1);
constexpr uint64_t kDoor = 0, kStop = 1, kFirst = 2;  // an event is about; from kFirst on about a connection

uint64_t DescriptorsMax() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 1024;
}

}  // namespace

TcpDoor::Limits TcpDoor::Limits::OfThisProcess() {
  const auto eighth = static_cast<uint32_t>(std::min<uint64_t>(DescriptorsMax() / 8, 1024));
  Limits limits;
  limits.connections = std::max<uint32_t>(eighth, 8);
  limits.strangers = limits.connections / 2;
  limits.descriptors_left = std::min<uint32_t>(eighth, limits.descriptors_left);
  return limits;
}

struct TcpDoor::State {
  // A warning that doesn't become a flood itself.
  class Warning {
   public:
    void Say(const std::function<void(const std::string&)>& warn, const std::string& what) {
      ++times_;
      const absl::Time now = MonotonicNow();
      if (now - said_ < kSayEvery) return;
      warn(absl::StrCat(what, " (", times_, times_ == 1 ? " time" : " times", " since this was said last)"));
      said_ = now;
      times_ = 0;
    }

   private:
    absl::Time said_ = absl::InfinitePast();
    uint64_t times_ = 0;
  };

  struct Connection {
    UniqueFd watched;  // of the same socket as the one that was given away
    TcpPeer peer;
  };

  Options options;
  UniqueFd epoll, stop;
  std::thread thread;
  // Of the thread.
  uint64_t next = kFirst;
  std::optional<absl::Time> opens_again;
  Warning no_descriptors, sent_away, full;

  mutable absl::Mutex mutex;
  std::map<uint64_t, Connection> connections ABSL_GUARDED_BY(mutex);
  std::map<TcpPeer, uint64_t> numbers ABSL_GUARDED_BY(mutex);
  Strangers strangers ABSL_GUARDED_BY(mutex);

  void Loop() {
    epoll_event events[kAtOnce];
    for (;;) {
      const int patience = opens_again.has_value() ? static_cast<int>(absl::ToInt64Milliseconds(kPause)) : -1;
      const int found = ::epoll_wait(epoll.get(), events, kAtOnce, patience);
      if (opens_again.has_value() && MonotonicNow() >= *opens_again) Listen(true);
      for (int i = 0; i < found; ++i) {
        if (events[i].data.u64 == kStop) return;
        if (events[i].data.u64 == kDoor) {
          TakeSome();
        } else {
          Ended(events[i].data.u64);
        }
      }
    }
  }

  void Listen(bool listen) {
    epoll_event event{};
    event.events = listen ? uint32_t{EPOLLIN} : 0;
    event.data.u64 = kDoor;
    KVIST_CHECK(::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, options.listening.get(), &event) == 0);
    opens_again = listen ? std::nullopt : std::optional(MonotonicNow() + kPause);
  }

  void NoDescriptors() {
    no_descriptors.Say(
        options.warn,
        "connections by TLS wait: this process has too few descriptors left; raise its limit (LimitNOFILE of its unit)");
    Listen(false);  // ready while nothing can be taken from it, it would wake the thread for ever
  }

  // For a connection, which takes two, and for the others.
  bool HasDescriptors() const {
    // The lowest number that is free is taken, so there are at most so many above it.
    const UniqueFd lowest(::fcntl(stop.get(), F_DUPFD_CLOEXEC, 0));
    return lowest && static_cast<uint64_t>(lowest.get()) + 2 + options.limits.descriptors_left < DescriptorsMax();
  }

  void TakeSome() {
    for (int i = 0; i < kAtOnce; ++i) {
      if (!HasDescriptors()) return NoDescriptors();  // who waits isn't taken only to be sent away
      UniqueFd socket(::accept4(options.listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) return NoDescriptors();
      if (!socket && (errno == EAGAIN || errno == EINVAL)) return;
      if (!socket) continue;  // it has gone again
      if (const std::optional<TcpPeer> peer = PeerOf(socket.get()); peer.has_value() && !Enter(socket, *peer))
        return NoDescriptors();
    }
  }

  // False: there are no descriptors for it.
  bool Enter(UniqueFd& socket, const TcpPeer& peer) {
    if (!MakeRoom()) return true;
    UniqueFd watched(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
    if (!watched) return false;
    epoll_event event{};  // of what can't be left out: that both sides have ended it, or that it broke
    event.data.u64 = next;
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, watched.get(), &event) != 0) return false;
    {
      const absl::MutexLock lock(&mutex);
      connections.emplace(next, Connection{std::move(watched), peer});
      numbers.insert_or_assign(peer, next);
      strangers.Came(next, peer);
    }
    ++next;
    options.take(std::move(socket));
    return true;
  }

  // For one more.
  bool MakeRoom() {
    for (;;) {
      std::optional<uint64_t> goes;
      Connection gone;
      {
        const absl::MutexLock lock(&mutex);
        const bool is_full = connections.size() >= options.limits.connections;
        if (!is_full && strangers.size() < options.limits.strangers) return true;
        goes = strangers.FirstToGo();
        if (goes.has_value()) gone = Take(*goes);
      }
      if (!goes.has_value()) {
        full.Say(options.warn, absl::StrCat("a connection by TLS is refused: there are ", options.limits.connections,
                                            " already, as many as may be with this process's limit of descriptors"));
        return false;
      }
      sent_away.Say(options.warn, absl::StrCat("too many connections by TLS that don't say who they are; sent away, of ",
                                               NetText(gone.peer.net())));
      ::shutdown(gone.watched.get(), SHUT_RDWR);  // whoever serves it hears, and closes it
      LetGo(gone);
    }
  }

  void Ended(uint64_t number) {
    Connection gone;
    {
      const absl::MutexLock lock(&mutex);
      if (connections.count(number) == 0) return;  // sent away meanwhile
      gone = Take(number);
    }
    LetGo(gone);
  }

  // Its other descriptor may be open for a while yet, and epoll would go by that.
  void LetGo(Connection& connection) {
    ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, connection.watched.get(), nullptr);
    connection.watched.reset();
  }

  void LetAllGo() {
    std::map<uint64_t, Connection> gone;
    const absl::MutexLock lock(&mutex);
    gone.swap(connections);
    numbers.clear();
    strangers = Strangers();
  }

  Connection Take(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto found = connections.find(number);
    Connection taken = std::move(found->second);
    connections.erase(found);
    // A client may have the port again, for another connection.
    if (const auto of_peer = numbers.find(taken.peer); of_peer != numbers.end() && of_peer->second == number)
      numbers.erase(of_peer);
    strangers.Forget(number);
    return taken;
  }
};

TcpDoor::TcpDoor(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<TcpDoor>> TcpDoor::Create(Options options) {
  KVIST_CHECK(options.listening && options.take != nullptr && options.warn != nullptr);
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  state->epoll = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  state->stop = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state->epoll || !state->stop) return ErrnoStatus("epoll and eventfd of a TCP listener", errno);
  const auto watch = [&](int fd, uint64_t about) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = about;
    return ::epoll_ctl(state->epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  if (!watch(state->options.listening.get(), kDoor) || !watch(state->stop.get(), kStop))
    return ErrnoStatus("epoll of a TCP listener", errno);
  return std::unique_ptr<TcpDoor>(new TcpDoor(std::move(state)));
}

TcpDoor::~TcpDoor() { Close(); }

void TcpDoor::Open() {
  State* raw = state_.get();
  state_->thread = std::thread([raw] { raw->Loop(); });
  ::pthread_setname_np(state_->thread.native_handle(), "kvist-tcp-door");
}

void TcpDoor::Close() {
  if (!state_->thread.joinable()) return;
  ::eventfd_write(state_->stop.get(), 1);
  state_->thread.join();
  state_->options.listening.reset();
  state_->LetAllGo();
}

void TcpDoor::Known(const TcpPeer& peer) {
  const absl::MutexLock lock(&state_->mutex);
  if (const auto found = state_->numbers.find(peer); found != state_->numbers.end()) state_->strangers.Forget(found->second);
}

TcpDoor::Count TcpDoor::count() const {
  const absl::MutexLock lock(&state_->mutex);
  return {state_->connections.size(), state_->strangers.size()};
}

}  // namespace kvist::rpc
