#include "daemon/session/listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <iterator>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cuda/region_mapper.h"
#include "daemon/session/closer.h"
#include "daemon/session/door.h"
#include "daemon/session/line_pace.h"
#include "daemon/session/listening_socket.h"
#include "daemon/session/probe_check.h"
#include "proto/session.pb.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/log_subject.h"
#include "storage/base/shm/frame_socket.h"
#include "storage/base/status.h"

namespace kvist::session {
namespace {

constexpr absl::Duration kHandshake = absl::Seconds(10);
constexpr uint32_t kRefusalsAtOnce = 8;  // lines of a user; as many as the workers of one engine, which are refused together
constexpr uint32_t kSessionsAtOnce = 128;  // lines of a user about its sessions: several engines come and go
constexpr Bytes kCheckedAtOnce = MiB(16);  // of probe pages: some milliseconds, which others wait

// What an epoll event is about, in its data word: kind in the low two bits, the connection's number above.
enum class Source : uint64_t { kDoor = 0, kInbox = 1, kSocket = 2, kProcess = 3 };
constexpr uint64_t Word(Source source, uint64_t connection) { return connection << 2 | static_cast<uint64_t>(source); }

uint64_t Nonce() {
  uint64_t nonce = 0;
  KVIST_CHECK(::getrandom(&nonce, sizeof nonce, 0) == sizeof nonce);
  return nonce;
}

}  // namespace

struct Listener::State {
  // One engine process's connection.
  struct Connection {
    // kHello -> [kProbing ->] kOpening -> kServing -> kDraining -> erased. Before kOpening it is simply dropped when something is wrong;
    // from then on the reactor has its session, so it stays until that has answered (Opened), and then until its copies are quiet.
    enum class Stage { kHello, kProbing, kOpening, kServing, kDraining };
    Stage stage = Stage::kHello;
    uint64_t number = 0;  // = the id of its session
    UniqueFd socket;
    Peer peer;
    std::string tenant;
    absl::Time since;
    uint64_t nonce = 0;               // of the probe pages that are being written
    GroupId probing;                  // whose they are
    std::optional<ProbeCheck> check;  // of them, once they are written
    Registration registration;        // until it is opened
    UniqueFd memory_fd;               // of Welcome
    UniqueFd doorbell_fd;
    SpaceDigest digest;
    std::string memory_proof;
    int numa_node = -1;          // of a worker's memory, where it is known
    std::optional<Ending> over;  // how it ended while it was being opened
    std::vector<UniqueFd> sent;  // with packets, and not wanted

    std::string SpaceName() const {
      return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.bytes.data()), 8));
    }
    LogSubject::Fields Subject() const {
      return {.session = number, .tenant = tenant, .space = stage >= Stage::kOpening ? SpaceName() : ""};
    }
    bool shaking_hands() const { return stage == Stage::kHello || stage == Stage::kProbing; }
    std::string Describe() const {
      return absl::StrCat("session ", number, " (pid ", peer.pid, ", uid ", peer.uid, ", tenant ", tenant, ")");
    }
  };

  Options options;
  SocketFile file;  // of the socket
  Reactor* reactor = nullptr;
  std::optional<Door> door;
  UniqueFd epoll;
  UniqueFd inbox_event;
  UniqueFd own_pidfd;
  std::thread thread;

  absl::Mutex mutex;
  std::vector<std::function<void()>> inbox ABSL_GUARDED_BY(mutex);  // from the reactor and the closer: bounded by sessions
  bool stopped ABSL_GUARDED_BY(mutex) = false;

  // The thread's own.
  std::unordered_map<uint64_t, Connection> connections;
  std::deque<uint64_t> checks;  // of connections, in turns; some may be gone
  uint64_t next_number = 1;
  LinePace refusals{kRefusalsAtOnce}, comings{kSessionsAtOnce}, goings{kSessionsAtOnce};
  bool stopping = false;

  cuda::RegionMapper mapper;
  Closer closer;  // last: it calls Post until it goes

  void Log(bool warning, const std::string& text) const {
    if (options.log) options.log(warning, text);
  }

  void Log(bool warning, const Connection& connection, LinePace* pace, const std::string& what) {
    const uint64_t lines = pace->Take(connection.peer.uid, MonotonicNow());
    if (lines == 0) return;
    const LogSubject about(connection.Subject());
    Log(warning, absl::StrCat(connection.Describe(), what, Unwritten(lines)));
  }

  void Count(Ending ending) const {
    if (options.ended && !stopping) options.ended(ending);
  }

  // Runs a task on this thread. After Stop it is dropped.
  void Post(std::function<void()> task) {
    absl::MutexLock lock(&mutex);
    if (stopped) return;
    inbox.push_back(std::move(task));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(inbox_event.get(), &one, sizeof one);
  }

  void Watch(int fd, Source source, uint64_t connection) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = Word(source, connection);
    KVIST_CHECK(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  }

  void Loop() {
    while (!stopping || !connections.empty()) {
      epoll_event events[64];
      const int count = ::epoll_wait(epoll.get(), events, 64, checks.empty() ? 1000 : 0);
      for (int i = 0; i < count; ++i) {
        const uint64_t number = events[i].data.u64 >> 2;
        switch (static_cast<Source>(events[i].data.u64 & 3)) {
          case Source::kDoor: door->Open([this](Door::Guest guest) { ComeIn(std::move(guest)); }); break;
          case Source::kInbox: TakeInbox(); break;
          case Source::kSocket: Readable(number); break;
          case Source::kProcess: HungUp(number, Ending::kExited, "the process has ended"); break;
        }
      }
      GoOnChecking();
      DropSlowHandshakes();
    }
    absl::MutexLock lock(&mutex);
    stopped = true;
    inbox.clear();
  }

  void TakeInbox() {
    uint64_t rings = 0;
    [[maybe_unused]] const ssize_t read = ::read(inbox_event.get(), &rings, sizeof rings);
    std::vector<std::function<void()>> tasks;
    {
      absl::MutexLock lock(&mutex);
      tasks.swap(inbox);
    }
    for (const std::function<void()>& task : tasks) task();
  }

  void ComeIn(Door::Guest guest) {
    Connection connection;
    connection.number = next_number++;
    connection.socket = std::move(guest.socket);
    connection.peer = std::move(guest.peer);
    connection.tenant = TenantOf(connection.peer.uid, options.tenants);
    connection.since = MonotonicNow();
    Watch(connection.socket.get(), Source::kSocket, connection.number);
    Watch(connection.peer.pidfd.get(), Source::kProcess, connection.number);
    connections.emplace(connection.number, std::move(connection));
  }

  void Readable(uint64_t number) {
    const auto found = connections.find(number);
    if (found == connections.end()) return;
    Connection& connection = found->second;
    if (connection.over.has_value() || connection.stage == Connection::Stage::kDraining) return;  // heard beside its end
    std::vector<UniqueFd> refused;
    absl::StatusOr<shm::Frame> frame = shm::ReceiveFrame(connection.socket.get(), &refused);
    std::vector<UniqueFd>& came = frame.ok() ? frame->fds : refused;
    const bool with_fds = !came.empty();
    // Nothing that came is closed here, only with the connection, which ends after any packet but a Hello that has some.
    std::move(came.begin(), came.end(), std::back_inserter(connection.sent));
    if (absl::IsNotFound(frame.status())) return;
    if (absl::IsUnavailable(frame.status())) return HungUp(number, Ending::kHungUp, "it hung up");
    if (!frame.ok()) return Reject(&connection, frame.status());
    v1::ClientFrame message;
    if (!message.ParseFromString(frame->bytes))
      return Reject(&connection, absl::InvalidArgumentError("a packet of the handshake is no ClientFrame"));
    if (connection.stage == Connection::Stage::kHello && message.has_hello()) return Hello(&connection, message.hello());
    if (with_fds) return Reject(&connection, absl::InvalidArgumentError("descriptors came with a packet that has none"));
    if (connection.stage == Connection::Stage::kProbing && !connection.check.has_value() && message.has_probe_written()) {
      connection.check.emplace(connection.registration.memory, connection.probing, connection.nonce);
      checks.push_back(number);
      return;
    }
    Reject(&connection, absl::InvalidArgumentError("a packet came out of turn"));
  }

  void Hello(Connection* connection, const v1::Hello& hello) {
    const auto keep = [this, uid = connection->peer.uid](std::shared_ptr<cuda::KvMemory> memory) {
      return closer.FreedApart(uid, std::move(memory));
    };
    absl::StatusOr<Registration> registration =
        CheckHello(hello, connection->sent, connection->tenant, connection->peer, options.gpu_service, keep);
    if (!registration.ok()) return Reject(connection, registration.status());
    connection->registration = *std::move(registration);
    if (connection->registration.memory == nullptr || connection->registration.probed) return OpenSession(connection);
    Probe(connection, GroupId{0});
  }

  void Probe(Connection* connection, GroupId group) {
    connection->nonce = Nonce();
    connection->probing = group;
    connection->stage = Connection::Stage::kProbing;
    v1::DaemonFrame frame;
    frame.mutable_probe()->set_nonce(connection->nonce);
    frame.mutable_probe()->set_group(group.value);
    // A peer that can't be sent to hangs up, which ends the connection.
    (void)shm::SendFrame(connection->socket.get(), frame.SerializeAsString());
  }

  // Checks some of what has been written, in turns: pages may be as large as clients say.
  void GoOnChecking() {
    for (Bytes left = kCheckedAtOnce; left > Bytes{} && !checks.empty();) {
      const uint64_t number = checks.front();
      checks.pop_front();
      const auto found = connections.find(number);
      if (found == connections.end()) continue;
      Connection& connection = found->second;
      const absl::StatusOr<bool> all = connection.check->GoOn(&left);
      if (!all.ok()) {
        Reject(&connection, all.status());
      } else if (*all) {
        Probed(&connection);
      } else {
        checks.push_back(number);
      }
    }
  }

  void Probed(Connection* connection) {
    connection->check.reset();
    connection->since = MonotonicNow();
    const GroupId next{static_cast<uint16_t>(connection->probing.value + 1)};
    if (next.value < connection->registration.memory->layouts.size()) return Probe(connection, next);
    OpenSession(connection);
  }

  void OpenSession(Connection* connection) {
    absl::StatusOr<shm::SessionMemory::Created> created = shm::SessionMemory::Create();
    if (!created.ok()) return Reject(connection, created.status());
    UniqueFd doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!doorbell) return Reject(connection, ErrnoStatus("eventfd of a session", errno));
    connection->doorbell_fd = UniqueFd(::fcntl(doorbell.get(), F_DUPFD_CLOEXEC, 3));
    if (!connection->doorbell_fd)
      return Reject(connection, ErrnoStatus("another descriptor of a session's doorbell", errno));
    connection->memory_fd = std::move(created->fd);
    connection->digest = connection->registration.space.digest;
    connection->memory_proof = connection->registration.memory_proof;
    connection->stage = Connection::Stage::kOpening;
    if (Registration& registration = connection->registration; registration.memory != nullptr) {
      connection->numa_node = registration.numa_node = registration.memory->NumaNode();
      mapper.Add(registration.memory);
    }
    const SessionId id{connection->number};
    auto session = std::make_unique<EngineSession>(
        EngineSession::Identity{id, connection->peer.pid, connection->peer.uid, MonotonicNow()},
        std::move(connection->registration), std::move(created->memory), std::move(doorbell));
    reactor->Open(std::move(session), [this, id](absl::Status status) {
      Post([this, id, status = std::move(status)] { Opened(id.value, status); });
    });
  }

  void Opened(uint64_t number, const absl::Status& status) {
    const auto found = connections.find(number);
    if (found == connections.end()) return;
    Connection& connection = found->second;
    if (!status.ok()) return TurnAway(&connection, status);
    if (connection.over.has_value()) return Drain(&connection, *connection.over, "it was over before it was served");
    connection.stage = Connection::Stage::kServing;
    v1::DaemonFrame frame;
    v1::Welcome& welcome = *frame.mutable_welcome();
    welcome.set_session(number);
    welcome.set_space_digest(connection.digest.bytes.data(), connection.digest.bytes.size());
    welcome.set_memory_bytes(shm::kSessionBytes.value);
    welcome.set_memory_proof(connection.memory_proof);
    const int fds[] = {connection.memory_fd.get(), connection.doorbell_fd.get(), own_pidfd.get()};
    const absl::Status sent = shm::SendFrame(connection.socket.get(), frame.SerializeAsString(), fds);
    connection.memory_fd.reset();
    connection.doorbell_fd.reset();
    if (!sent.ok()) return Drain(&connection, Ending::kHungUp, "it can't be welcomed");
    const std::string where =
        connection.numa_node < 0 ? "" : absl::StrCat(", its memory near NUMA node ", connection.numa_node);
    Log(false, connection, &comings, absl::StrCat(" is served in space ", connection.SpaceName(), where));
  }

  // Ends a connection that did something wrong, telling it what.
  void Reject(Connection* connection, const absl::Status& why) {
    switch (connection->stage) {
      case Connection::Stage::kHello:
      case Connection::Stage::kProbing: return TurnAway(connection, why);
      case Connection::Stage::kOpening:  // Opened comes
        Tell(*connection, why);
        connection->over = Ending::kBrokeProtocol;
        return Unwatch(*connection);
      case Connection::Stage::kServing:
        Tell(*connection, why);
        return Drain(connection, Ending::kBrokeProtocol, "it broke the protocol");
      case Connection::Stage::kDraining: return;
    }
  }

  // Ends one that the reactor has no session of.
  void TurnAway(Connection* connection, const absl::Status& why) {
    Tell(*connection, why);
    Count(Ending::kRefused);
    Erase(connection->number);
  }

  void Tell(const Connection& connection, const absl::Status& why) {
    Log(true, connection, &refusals, absl::StrCat(" is refused: ", why.message()));
    Refuse(connection.socket.get(), why);
  }

  void HungUp(uint64_t number, Ending ending, std::string_view how) {
    const auto found = connections.find(number);
    if (found == connections.end()) return;
    Connection& connection = found->second;
    switch (connection.stage) {
      case Connection::Stage::kHello:
      case Connection::Stage::kProbing: return Erase(number);
      case Connection::Stage::kOpening: connection.over = ending; return Unwatch(connection);  // Opened comes
      case Connection::Stage::kServing: return Drain(&connection, ending, how);
      case Connection::Stage::kDraining: return;
    }
  }

  void Drain(Connection* connection, Ending ending, std::string_view why) {
    Count(ending);
    Log(false, *connection, &goings, absl::StrCat(" ends: ", absl::string_view(why.data(), why.size())));
    connection->stage = Connection::Stage::kDraining;
    Unwatch(*connection);
    const uint64_t number = connection->number;
    reactor->Close(SessionId{number}, [this, number] { Post([this, number] { Erase(number); }); });
  }

  void Unwatch(const Connection& connection) {
    ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
    ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, connection.peer.pidfd.get(), nullptr);
  }

  void Erase(uint64_t number) {
    const auto found = connections.find(number);
    if (found == connections.end()) return;
    if (found->second.stage != Connection::Stage::kDraining) Unwatch(found->second);
    Connection& connection = found->second;
    const uid_t uid = connection.peer.uid;
    door->Leaves();
    if (shm::EndWithoutDescriptors(connection.socket.get()) && connection.sent.empty()) {
      door->Left(uid);
    } else {
      // Its user has had it until all of it is closed: so who keeps that waiting has ever fewer.
      connection.sent.push_back(std::move(connection.socket));
      closer.Close(uid, std::move(connection.sent), [this, uid] { Post([this, uid] { door->Left(uid); }); });
    }
    connections.erase(found);
  }

  void DropSlowHandshakes() {
    std::vector<uint64_t> slow;
    bool wants_reactor = false;  // which may have been woken in vain (Reactor::Sleep)
    const absl::Time now = MonotonicNow();
    for (const auto& [number, connection] : connections) {
      wants_reactor |= connection.stage == Connection::Stage::kOpening || connection.stage == Connection::Stage::kDraining;
      const bool waited_for = !connection.check.has_value();  // what is checked here waits for us
      if (connection.shaking_hands() && (stopping || (waited_for && now - connection.since > kHandshake)))
        slow.push_back(number);
    }
    if (wants_reactor) reactor->Wake();
    for (const uint64_t number : slow) {
      Reject(&connections.at(number), absl::DeadlineExceededError("the handshake took too long"));
    }
  }

  // Ends the longest handshake of a user, so that another one gets in.
  bool MakeRoom(uid_t uid) {
    Connection* longest = nullptr;
    for (auto& [number, connection] : connections) {
      if (connection.peer.uid == uid && connection.shaking_hands() && (longest == nullptr || number < longest->number))
        longest = &connection;
    }
    if (longest == nullptr) return false;
    Reject(longest,
           absl::ResourceExhaustedError(
               "all connections are taken, and another user needs one: the longest handshake of a user who has many "
               "ends; connect again, or raise session.connections_max"));
    return true;
  }

  void StopServing() {
    stopping = true;
    ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, door->fd(), nullptr);
    // Whoever stands before the door may have sent something already.
    std::vector<UniqueFd> listening;
    listening.push_back(door->Shut());
    closer.Close(static_cast<uid_t>(-1), std::move(listening));
    std::vector<uint64_t> all;
    for (const auto& [number, connection] : connections) all.push_back(number);
    for (const uint64_t number : all) HungUp(number, Ending::kHungUp, "kvistd stops");
  }
};

absl::StatusOr<std::unique_ptr<Listener>> Listener::Create(Options options, Reactor* reactor) {
  // What a client sends wrongly is told to it, not written to stderr for each packet.
  google::protobuf::SetLogHandler(nullptr);
  auto state = std::make_unique<State>();
  KVIST_ASSIGN_OR_RETURN(ListeningSocket listening, ListenAt(options.socket, options.mode, options.group));
  state->file = listening.file;
  State* raw = state.get();
  state->door.emplace(
      std::move(listening.fd), Door::Limits{options.connections_max, options.connections_per_uid},
      Door::Calls{[raw](const std::string& warning) { raw->Log(true, warning); }, [raw] { raw->Count(Ending::kRefused); },
                  [raw](uid_t of, UniqueFd socket) {
                    std::vector<UniqueFd> all;
                    all.push_back(std::move(socket));
                    raw->closer.Close(of, std::move(all));
                  },
                  [raw](uid_t of) { return raw->MakeRoom(of); }});
  state->options = std::move(options);
  state->reactor = reactor;
  state->epoll = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  state->inbox_event = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state->epoll || !state->inbox_event) return ErrnoStatus("epoll and eventfd of the listener", errno);
  state->own_pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!state->own_pidfd) return ErrnoStatus("pidfd_open of kvistd itself (Linux 5.3 or newer is needed)", errno);
  state->Watch(state->door->fd(), Source::kDoor, 0);
  state->Watch(state->inbox_event.get(), Source::kInbox, 0);
  reactor->OnBroken([raw](SessionId id, absl::Status why) {
    raw->Post([raw, id, why = std::move(why)] {
      const auto found = raw->connections.find(id.value);
      if (found != raw->connections.end() && found->second.stage == State::Connection::Stage::kServing)
        raw->Reject(&found->second, why);
    });
  });
  state->thread = std::thread([raw] { raw->Loop(); });
  ::pthread_setname_np(state->thread.native_handle(), "kvist-listener");
  return std::unique_ptr<Listener>(new Listener(std::move(state)));
}

void Listener::Retune(uint32_t connections_max, std::map<std::string, std::string> tenants, std::function<void()> done) {
  State* raw = state_.get();
  raw->Post([raw, connections_max, tenants = std::move(tenants), done = std::move(done)] {
    raw->door->SetGuestsMax(connections_max);
    raw->options.tenants = tenants;
    done();
  });
}

Listener::Listener(std::unique_ptr<State> state) : state_(std::move(state)) {}

Listener::~Listener() {
  State* raw = state_.get();
  raw->Post([raw] { raw->StopServing(); });
  raw->thread.join();
  RemoveSocketFile(raw->options.socket, raw->file);
}

}  // namespace kvist::session
