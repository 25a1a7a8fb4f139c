#ifndef KVIST_DAEMON_SESSION_LISTENER_H_
#define KVIST_DAEMON_SESSION_LISTENER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/session/reactor.h"
#include "daemon/session/registration.h"

namespace kvist::session {

// What happened to an engine's connection, for the log: one line each while a user has few, no tokens, no keys.
using LogLine = std::function<void(bool warning, const std::string& text)>;

// How a connection ended, for whoever counts.
enum class Ending : uint8_t { kRefused, kExited, kHungUp, kBrokeProtocol };  // kRefused: before it was a session

// The engine socket: takes connections, identifies the peer, shakes hands (proto/session.proto), and watches every process it serves.
//
// Death: a session ends when its process does (pidfd), when the socket hangs up, or when the reactor reports a broken protocol. The
//   socket is closed only when no copy touches the engine's memory any more, so to a living client the hang-up means that.
// Bounds: at most connections_max sockets, and connections_per_uid of one user, but never more than half of them; one that doesn't
//   finish its handshake within kHandshake is dropped. Without descriptors for another connection it is refused.
// Threads: one of its own; Retune from any. Create and destroy on one; destroy before the reactor stops.
class Listener {
 public:
  struct Options {
    std::string socket;  // path; its folder must exist
    uint32_t mode = 0660;
    std::string group;  // "" leaves it
    uint32_t connections_max = 1024;
    uint32_t connections_per_uid = 512;
    std::map<std::string, std::string> tenants;  // uid -> tenant
    GpuService gpu_service;                      // outlives the listener and all sessions
    LogLine log;
    std::function<void(Ending)> ended;  // called on the listener's thread; not for those that end because the listener does
  };
  // Errors: AlreadyExists  a live daemon listens there.  InvalidArgument  the path is too long, the group unknown; those of bind.
  static absl::StatusOr<std::unique_ptr<Listener>> Create(Options options, Reactor* reactor);
  ~Listener();

  // From now on (when `done` is called, on the listener's thread) so many connections may be open, and those that come are of these
  // tenants. Ends none that is there, and none changes its tenant. After the destructor began nothing is called.
  void Retune(uint32_t connections_max, std::map<std::string, std::string> tenants, std::function<void()> done);

 private:
  struct State;
  explicit Listener(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_LISTENER_H_
