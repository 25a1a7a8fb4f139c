#include "daemon/session/door.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/session.pb.h"
#include "storage/base/clock.h"
#include "storage/base/shm/frame_socket.h"

namespace kvist::session {
namespace {

constexpr int kAtOnce = 64;  // then it is the guests' turn
constexpr size_t kReasonBytesMax = 4096;

UniqueFd Spare() { return UniqueFd(::eventfd(0, EFD_CLOEXEC)); }

absl::Status NoDescriptors() {
  return absl::ResourceExhaustedError("this kvistd has no descriptors left; raise its LimitNOFILE");
}

}  // namespace

void Refuse(int socket, const absl::Status& why) {
  v1::DaemonFrame frame;
  frame.mutable_refused()->set_code(static_cast<int>(why.code()));
  frame.mutable_refused()->set_message(std::string(why.message().substr(0, kReasonBytesMax)));
  (void)shm::SendFrame(socket, frame.SerializeAsString());
}

Door::Door(UniqueFd listening, Limits limits, Calls calls)
    : listening_(std::move(listening)), spare_(Spare()), limits_(limits), calls_(std::move(calls)) {}

void Door::Open(const std::function<void(Guest)>& come_in) {
  if (!spare_) spare_ = Spare();
  for (int i = 0; i < kAtOnce; ++i) {
    UniqueFd socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EMFILE || errno == ENFILE) && RefuseWithSpare()) continue;
    if (!socket) return;
    Peer peer;
    if (const absl::Status admitted = Admit(socket.get(), &peer); !admitted.ok()) {
      TurnAway(std::move(socket), admitted);
      continue;
    }
    ++guests_;
    ++guests_of_[peer.uid];
    come_in({std::move(socket), std::move(peer)});
  }
}

absl::Status Door::Admit(int socket, Peer* peer) {
  absl::StatusOr<Peer> identified = IdentifyPeer(socket);
  if (absl::IsResourceExhausted(identified.status())) return NoDescriptors();
  if (!identified.ok()) return identified.status();
  *peer = *std::move(identified);
  const auto of_uid = guests_of_.find(peer->uid);
  if (of_uid != guests_of_.end() && of_uid->second >= OfOneUid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", peer->uid, " has ", of_uid->second, " connections; raise session.connections_",
                     OfOneUid() < std::max(limits_.guests / 2, 1U) ? "per_uid" : "max, of which one user may have half"));
  }
  if (guests_ >= limits_.guests && (!MakeRoom(peer->uid) || guests_ >= limits_.guests)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this kvistd has ", guests_, " connections; raise session.connections_max"));
  }
  return absl::OkStatus();
}

// Only of users who have more guests than the newcomer's then will: two users can't send each other away in turn.
bool Door::MakeRoom(uid_t newcomer) {
  const auto own = guests_of_.find(newcomer);
  const uint32_t with_newcomer = own == guests_of_.end() ? 1 : own->second + 1;
  std::vector<std::pair<uint32_t, uid_t>> users;
  for (const auto& [uid, guests] : guests_of_) {
    if (guests > with_newcomer) users.emplace_back(guests, uid);
  }
  std::sort(users.rbegin(), users.rend());
  return std::any_of(users.begin(), users.end(), [&](const auto& user) { return calls_.make_room(user.second); });
}

uint32_t Door::OfOneUid() const { return std::min(limits_.of_one_uid, std::max(limits_.guests / 2, 1U)); }

void Door::Leaves() { --guests_; }

void Door::Left(uid_t uid) {
  const auto of_uid = guests_of_.find(uid);
  if (--of_uid->second == 0) guests_of_.erase(of_uid);
}

bool Door::RefuseWithSpare() {
  spare_.reset();
  UniqueFd socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool taken = static_cast<bool>(socket);
  if (taken) TurnAway(std::move(socket), NoDescriptors());
  spare_ = Spare();
  return taken;
}

void Door::TurnAway(UniqueFd socket, const absl::Status& why) {
  Refuse(socket.get(), why);
  LogRefusal(std::string(why.message()));
  calls_.refused();
  // How many can wait to be closed is bounded by how many descriptors the kernel lets a user have under way.
  const uid_t of = UidOf(socket.get());
  if (!shm::EndWithoutDescriptors(socket.get())) calls_.close(of, std::move(socket));
}

// A flood of refusals is a line a second, not one each; whoever's they are.
void Door::LogRefusal(const std::string& why) {
  if (const uint64_t lines = pace_.Take(0, MonotonicNow()); lines > 0)
    calls_.log(absl::StrCat("connections are refused: ", why, Unwritten(lines)));
}

}  // namespace kvist::session
