#ifndef KVIST_DAEMON_CORE_OWNED_TABLE_H_
#define KVIST_DAEMON_CORE_OWNED_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "daemon/core/handle_table.h"
#include "storage/base/ids.h"
#include "storage/base/units.h"

namespace kvist::core {

// Records that sessions hold and that end with them, named by handles of their instance and counted in its budget: leases, private
// allocations. T has members `instance`, `session` and `bytes`.
//
// Lifecycle of a record: Insert -> alive, until its session is closed or it is retired -> Take, once, at any time. It counts in its
//   instance's budget until it is taken: what it keeps is in use as long.
// Threads: one.
template <class H, class T>
class OwnedTable {
 public:
  // `budget`: bytes of one instance's records; `per_session`: how many one session may hold. Handles may outlive the daemon and be
  // shown to its successor: with a random `first_generation` one is taken for one of ours once in 2^32 times, and only within the
  // same instance.
  OwnedTable(Bytes budget, size_t per_session, uint32_t first_generation)
      : budget_(budget), per_session_(per_session), records_(first_generation) {}

  // Its handle, or none when it would take its instance past the budget or its session past the limit.
  H Insert(T record) {
    // A refusal leaves no entry behind: instances and sessions come and go for ever.
    if (used(record.instance) + record.bytes > budget_) return {};
    absl::btree_set<uint64_t>& of_session = by_session_[record.session];
    if (of_session.size() >= per_session_) return {};
    used_[record.instance] += record.bytes;
    const H handle = records_.Insert(std::move(record));
    of_session.insert(handle.Pack());
    return handle;
  }
  // For records from now on; those there are stay, and count.
  void SetBudget(Bytes budget) { budget_ = budget; }
  Bytes budget() const { return budget_; }

  // The record if it is alive and belongs to `instance`.
  T* Find(H handle, InstanceId instance) {
    T* record = records_.Find(handle);
    const bool alive = record != nullptr && record->instance == instance && !retired_.contains(handle.Pack());
    return alive && by_session_.contains(record->session) ? record : nullptr;
  }

  // One that wasn't taken, of a closed session maybe.
  T& operator[](H handle) { return *records_.Find(handle); }
  // None of the session's records is alive any more; the caller takes them in slices. O(1), however many there are.
  void Close(SessionId session) {
    if (auto node = by_session_.extract(session); !node.empty()) closed_.emplace(session, std::move(node.mapped()));
  }
  // A record of a closed session, or none. In a fixed order, so that a simulated run replays exactly.
  H OfClosed() const { return closed_.empty() ? H{} : H::Unpack(*closed_.begin()->second.begin()); }

  // It is alive no more and its session's no longer; the caller takes it when nothing uses any more what it has kept.
  void Retire(H handle) {
    Disown(handle, records_.Find(handle)->session);
    retired_.insert(handle.Pack());
  }
  bool Retired(H handle) const { return retired_.contains(handle.Pack()); }

  T Take(H handle) {
    T record = records_.Take(handle);
    if (retired_.erase(handle.Pack()) == 0) Disown(handle, record.session);
    const auto used = used_.find(record.instance);
    used->second -= record.bytes;
    if (used->second == Bytes{0}) used_.erase(used);
    return record;
  }

  size_t size() const { return records_.size() - retired_.size(); }  // of those retired only their bytes count
  Bytes used(InstanceId instance) const {
    const auto found = used_.find(instance);
    return found == used_.end() ? Bytes{0} : found->second;
  }
  // Calls f(H, const T&) for all; for invariant checks and status.
  template <class F>
  void ForEach(F f) {
    records_.ForEach(f);
  }

 private:
  void Disown(H handle, SessionId session) {
    if (const auto open = by_session_.find(session); open != by_session_.end()) {
      open->second.erase(handle.Pack());
      if (open->second.empty()) by_session_.erase(open);
    } else {
      const auto closed = closed_.find(session);
      closed->second.erase(handle.Pack());
      if (closed->second.empty()) closed_.erase(closed);
    }
  }

  Bytes budget_;
  const size_t per_session_;
  HandleTable<H, T> records_;
  absl::flat_hash_map<InstanceId, Bytes> used_;
  absl::flat_hash_map<SessionId, absl::btree_set<uint64_t>> by_session_;  // of those that are open
  absl::btree_map<SessionId, absl::btree_set<uint64_t>> closed_;
  absl::flat_hash_set<uint64_t> retired_;
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_OWNED_TABLE_H_
