#include "daemon/core/leases.h"

namespace kvist::core {

LeaseId Leases::Grant(Lease lease) {
  // A refusal leaves no entry behind: instances and sessions come and go for ever.
  if (used(lease.instance) + lease.bytes > budget_) return {};
  absl::btree_set<uint64_t>& of_session = by_session_[lease.session];
  if (of_session.size() >= kLeasesPerSession) return {};
  used_[lease.instance] += lease.bytes;
  const absl::Time deadline = lease.deadline;
  const LeaseId id = leases_.Insert(std::move(lease));
  by_deadline_.insert({deadline, id.Pack()});
  of_session.insert(id.Pack());
  return id;
}

Lease* Leases::Find(LeaseId id, InstanceId instance) {
  Lease* lease = leases_.Find(id);
  return lease != nullptr && lease->instance == instance ? lease : nullptr;
}

Lease Leases::End(LeaseId id) {
  Lease lease = leases_.Take(id);
  by_deadline_.erase({lease.deadline, id.Pack()});
  const auto used = used_.find(lease.instance);
  used->second -= lease.bytes;
  if (used->second == Bytes{0}) used_.erase(used);
  const auto of_session = by_session_.find(lease.session);
  of_session->second.erase(id.Pack());
  if (of_session->second.empty()) by_session_.erase(of_session);
  return lease;
}

std::vector<LeaseId> Leases::OfSession(SessionId session) const {
  std::vector<LeaseId> ids;
  if (const auto found = by_session_.find(session); found != by_session_.end()) {
    for (const uint64_t id : found->second) ids.push_back(LeaseId::Unpack(id));
  }
  return ids;
}

LeaseId Leases::Expired(absl::Time now) const {
  if (by_deadline_.empty() || by_deadline_.begin()->first > now) return {};
  return LeaseId::Unpack(by_deadline_.begin()->second);
}

Bytes Leases::used(InstanceId instance) const {
  const auto found = used_.find(instance);
  return found == used_.end() ? Bytes{0} : found->second;
}

}  // namespace kvist::core
