#include "daemon/core/leases.h"

namespace kvist::core {

LeaseId Leases::Grant(Lease lease) {
  const absl::Time deadline = lease.deadline;
  const LeaseId id = leases_.Insert(std::move(lease));
  if (id) by_deadline_.insert({deadline, id.Pack()});
  return id;
}

Lease Leases::End(LeaseId id) {
  Lease lease = leases_.Take(id);
  by_deadline_.erase({lease.deadline, id.Pack()});
  return lease;
}

LeaseId Leases::Expired(absl::Time now) const {
  if (by_deadline_.empty() || by_deadline_.begin()->first > now) return {};
  return LeaseId::Unpack(by_deadline_.begin()->second);
}

}  // namespace kvist::core
