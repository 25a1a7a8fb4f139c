#ifndef KVIST_DAEMON_CORE_SESSIONS_H_
#define KVIST_DAEMON_CORE_SESSIONS_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "daemon/core/events.h"

namespace kvist::core {

// One connected process of an instance.
struct Session {
  InstanceId instance;
  Role role = Role::kScheduler;
  Rank rank;
  SpaceId space;
  bool closed = false;            // its process is gone; waiting until its copies are quiet
  absl::btree_set<uint64_t> ops;  // in flight, packed; ordered, so that a simulated run replays exactly
};

// Who is connected: instances (one engine each: a scheduler and its worker ranks) and their sessions.
//
// Lifecycle of a session: Open -> Close (its process died) -> Remove (its copies are quiet). An instance lives from its first
// session to its last open one; its id is never reused.
// Threads: one.
class Sessions {
 public:
  static constexpr size_t kSessionsMax = 16384;
  static constexpr size_t kOpsPerSession = 1024;  // at most this many are in flight; as many as the board has cells

  // Errors: FailedPrecondition  the instance serves another space; InvalidArgument  no such rank; ResourceExhausted  kSessionsMax.
  // A worker whose rank is connected already takes the rank over: the old process is on its way out, or the name is used twice,
  // and then the daemon can't tell who is right; so both are served, as ranks of one engine that stores the same bytes.
  absl::StatusOr<Session*> Open(const SessionOpened& event, SpaceId space, uint32_t ranks);
  Session* Find(SessionId id);
  void Close(SessionId id);
  void Remove(SessionId id);

  // What an open instance is called, within its tenant.
  const std::string& NameOf(InstanceId instance) const { return open_.at(instance).name.second; }
  // [rank]: the region of the pool that is nearest to that worker's memory, for an open instance; 0 for ranks that haven't come yet.
  std::span<const uint32_t> NearOf(InstanceId instance) const { return open_.at(instance).near; }

  size_t size() const { return sessions_.size(); }
  size_t instances() const { return instances_.size(); }
  template <class F>
  void ForEach(F f) const {
    for (const auto& [id, session] : sessions_) f(id, session);
  }

 private:
  struct Instance {
    InstanceId id;
    SpaceId space;
    uint32_t open_sessions = 0;
  };
  using Name = std::pair<std::string, std::string>;  // tenant, name
  struct OpenInstance {
    Name name;
    std::vector<uint32_t> near;  // [rank]
  };
  absl::flat_hash_map<Name, Instance> instances_;
  absl::flat_hash_map<InstanceId, OpenInstance> open_;
  absl::flat_hash_map<SessionId, Session> sessions_;
  uint64_t next_instance_ = 1;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_SESSIONS_H_
