#ifndef KVIST_DAEMON_SESSION_DOOR_H_
#define KVIST_DAEMON_SESSION_DOOR_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "daemon/session/line_pace.h"
#include "daemon/session/peer.h"
#include "storage/base/unique_fd.h"

namespace kvist::session {

// Tells whoever is at the other end why it isn't served. It may have gone already.
void Refuse(int socket, const absl::Status& why);

// The way in through the engine socket: who waits there comes in, or is told why not.
//
// Bounds: so many guests at once, and so many of one user, but never more than half of them, so that no user can keep the others out. Nor can
//   several who come and say nothing: when all places are taken, a user with fewer guests gets that of one who isn't served yet. Without a
//   descriptor for the next one it is refused with one that is kept for this: left waiting it would wake the thread for ever.
// Threads: one.
class Door {
 public:
  struct Limits {
    uint32_t guests = 1024;
    uint32_t of_one_uid = 512;
  };
  struct Guest {
    UniqueFd socket;
    Peer peer;
  };
  struct Calls {
    std::function<void(const std::string& warning)> log;  // at most a line a second
    std::function<void()> refused;                        // for each
    // Closes the socket of one who doesn't come in, in which descriptors lie: closing those may keep whoever does it waiting.
    std::function<void(uid_t of, UniqueFd socket)> close;
    // Sends a guest of this user away who isn't served yet, so that it Leaves; false: there is none.
    std::function<bool(uid_t of)> make_room;
  };
  Door(UniqueFd listening, Limits limits, Calls calls);

  int fd() const { return listening_.get(); }
  // Nobody comes in any more; the listening socket, in which those lie who haven't.
  UniqueFd Shut() { return std::move(listening_); }

  // Takes some of those who wait; each that may come in is a guest until it Leaves, and one of its user's until it has Left, too.
  void Open(const std::function<void(Guest guest)>& come_in);
  void Leaves();         // its place is free for others
  void Left(uid_t uid);  // and all of it is closed, so that its user may have another

  // From now on; sends nobody away who is in.
  void SetGuestsMax(uint32_t guests) { limits_.guests = guests; }

 private:
  uint32_t OfOneUid() const;
  bool RefuseWithSpare();
  void TurnAway(UniqueFd socket, const absl::Status& why);
  absl::Status Admit(int socket, Peer* peer);
  bool MakeRoom(uid_t newcomer);
  void LogRefusal(const std::string& why);

  UniqueFd listening_;
  UniqueFd spare_;  // of RefuseWithSpare
  Limits limits_;
  Calls calls_;
  uint32_t guests_ = 0;
  std::unordered_map<uid_t, uint32_t> guests_of_;  // uid -> how many of them
  LinePace pace_{1};
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_DOOR_H_
