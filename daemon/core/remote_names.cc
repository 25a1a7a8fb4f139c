#include "daemon/core/remote_names.h"

#include <algorithm>

#include "storage/base/check.h"

namespace kvist::core {

void RemoteNames::WriteBegan(const Name& name, uint64_t serial) {
  KVIST_CHECK(!WillForget(name));
  Writes& writes = writes_[name];
  ++writes.count;
  writes.serial = serial;
}

RemoteNames::Ended RemoteNames::WriteEnded(const Name& name) {
  const auto writes = writes_.find(name);
  KVIST_CHECK(writes != writes_.end());
  Ended ended{writes->second.serial};
  if (--writes->second.count == 0) writes_.erase(writes);
  const auto doomed = doomed_.find(name);
  if (doomed == doomed_.end()) return ended;
  for (Doomed& by : doomed->second) {
    --by.writes;
    ended.forget_for.push_back(by.job);
  }
  std::erase_if(doomed->second, [](const Doomed& by) { return by.writes == 0; });
  if (doomed->second.empty()) doomed_.erase(doomed);
  return ended;
}

uint32_t RemoteNames::Doom(const Name& name, JobId job) {
  const auto writes = writes_.find(name);
  if (writes == writes_.end()) return 0;
  std::vector<Doomed>& doomed = doomed_[name];
  if (std::any_of(doomed.begin(), doomed.end(), [job](const Doomed& other) { return other.job == job; })) return 0;
  doomed.push_back({job, writes->second.count});
  return writes->second.count;
}

void RemoteNames::ForgetEnded(const Name& name) {
  const auto forgets = forgets_.find(name);
  if (forgets != forgets_.end() && --forgets->second == 0) forgets_.erase(forgets);
}

void RemoteNames::ClearEnded(const Name& name) {
  const auto clears = clears_.find(name);
  KVIST_CHECK(clears != clears_.end());
  if (--clears->second == 0) clears_.erase(clears);
}

void RemoteNames::CheckInvariants() const {
  for (const auto& [name, doomed] : doomed_) {
    KVIST_CHECK(!doomed.empty());
    for (const Doomed& by : doomed) KVIST_CHECK(by.writes > 0 && writes_.at(name).count >= by.writes);
  }
}

}  // namespace kvist::core
