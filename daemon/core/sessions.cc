#include "daemon/core/sessions.h"

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace kvist::core {

absl::StatusOr<Session*> Sessions::Open(const SessionOpened& event, SpaceId space, uint32_t ranks) {
  if (sessions_.size() >= kSessionsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("this kvistd serves at most ", kSessionsMax, " sessions"));
  }
  if (event.role == Role::kWorker && event.rank.value >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", event.rank.value, " of ", ranks, ": ranks are below tensor_parallel * pipeline_parallel"));
  }
  const Name name{event.space.tenant, event.instance};
  Instance& instance = instances_[name];
  if (instance.open_sessions == 0) {
    instance.id = InstanceId{next_instance_++};
    instance.space = space;
    open_[instance.id] = {name, std::vector<uint32_t>(ranks)};
  } else if (instance.space != space) {
    return absl::FailedPreconditionError(absl::StrCat("instance '", event.instance,
                                                      "' serves another space (model, layout or parallel shape differ "
                                                      "between its processes); give each engine a name of its own"));
  }
  ++instance.open_sessions;
  if (event.role == Role::kWorker) open_[instance.id].near[event.rank.value] = event.near;
  Session session;
  session.instance = instance.id;
  session.role = event.role;
  session.rank = event.rank;
  session.space = space;
  const auto [at, fresh] = sessions_.emplace(event.session, std::move(session));
  KVIST_CHECK(fresh);
  return &at->second;
}

Session* Sessions::Find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

void Sessions::Close(SessionId id) {
  Session* session = Find(id);
  KVIST_CHECK(session != nullptr && !session->closed);
  session->closed = true;
  const auto open = open_.find(session->instance);
  const auto instance = instances_.find(open->second.name);
  if (--instance->second.open_sessions == 0) {
    instances_.erase(instance);
    open_.erase(open);
  }
}

void Sessions::Remove(SessionId id) {
  KVIST_CHECK(Find(id) != nullptr && Find(id)->closed && Find(id)->ops.empty());
  sessions_.erase(id);
}

}  // namespace kvist::core
