// What is asked of a store beyond the node: what it has, and that it removes something.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "daemon/remote_tier.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

using remote::Found;
using remote::Identity;
using remote::Outcome;
using remote::SealedStore;

constexpr absl::Duration kAskAtLeast = absl::Milliseconds(1);
// Objects are removed in parts of what the store takes at a time, which leave room for others.
constexpr uint64_t kRemovedShare = 16;
constexpr size_t kCountedMost = 1024;  // as the core asks for at most

absl::Status FirstError(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) KVIST_RETURN_IF_ERROR(outcome.status);
  return absl::OkStatus();
}

}  // namespace

absl::Status RemoteTier::ErrorOfAll(const std::vector<Outcome>& outcomes) {
  const bool any = std::any_of(outcomes.begin(), outcomes.end(), [](const Outcome& outcome) { return outcome.status.ok(); });
  for (const Outcome& outcome : outcomes) {
    if (!any || !absl::IsUnavailable(outcome.status)) KVIST_RETURN_IF_ERROR(outcome.status);
  }
  return absl::OkStatus();
}

// Chunks that are being removed.
struct RemoteTier::Forgetting {
  core::RemoteForgotten forgotten;
  std::vector<Identity> identities = {};  // of first shards: without them there is nothing
  Bytes longest{};
  size_t next = 0;
  absl::Status status{};  // the first error
};

void RemoteTier::Ask(const core::SpaceSpec& space, core::RemoteAsked asked) {
  auto asking = std::make_shared<Asking>();
  asking->space = space.digest;
  asking->groups = static_cast<uint16_t>(space.groups.size());
  asking->keys = std::move(asked.keys);
  // One wait for all that is asked for a lookup.
  asking->deadline = asked.patient ? MonotonicNow() + options_.read_for
                                   : std::max(asked.since + options_.ask_for, MonotonicNow() + kAskAtLeast);
  asking->done = [this, ask = asked.ask](absl::Status status, std::vector<bool> there) {
    Note(status);
    ear_->Say(core::RemoteFound{ask, std::move(status), std::move(there)});
  };
  asks_.Post([this, asking] { AskStore(asking); });
}

absl::StatusOr<uint32_t> RemoteTier::Count(const core::SpaceSpec& space, std::vector<ChunkKey> keys, absl::Time deadline) {
  {
    const absl::MutexLock lock(&mutex_);
    if (!reachable_) return absl::UnavailableError(absl::StrCat("remote:", options_.name, ": ", why_not_));
  }
  struct Answer {
    absl::Notification said;
    absl::Status status;
    std::vector<bool> there;
  };
  const auto answer = std::make_shared<Answer>();
  auto asking = std::make_shared<Asking>();
  asking->space = space.digest;
  asking->groups = static_cast<uint16_t>(space.groups.size());
  keys.resize(std::min(keys.size(), kCountedMost / space.groups.size()));
  asking->keys = keys;
  asking->deadline = std::min(deadline, MonotonicNow() + options_.read_for);
  asking->done = [answer](absl::Status status, std::vector<bool> there) {
    answer->status = std::move(status);
    answer->there = std::move(there);
    answer->said.Notify();
  };
  asks_.Post([this, asking] { AskStore(asking); });
  if (!answer->said.WaitForNotificationWithTimeout(deadline - MonotonicNow()))
    return absl::UnavailableError(absl::StrCat("remote:", options_.name, " didn't answer"));
  KVIST_RETURN_IF_ERROR(answer->status);
  auto count = static_cast<uint32_t>(keys.size());
  for (uint32_t g = 0; g < space.groups.size(); ++g) {
    for (uint32_t k = 0; space.groups[g].reuse.chained() && k < count; ++k) {
      if (!answer->there[g * keys.size() + k]) count = k;
    }
  }
  return count;
}

void RemoteTier::Forget(const core::SpaceSpec& space, core::RemoteForgotten forgotten) {
  const auto forgetting = std::make_shared<Forgetting>();
  forgetting->forgotten = std::move(forgotten);
  const std::vector<ChunkKey>& keys = forgetting->forgotten.keys;
  const SpaceDigest name = NameOf(space.digest);
  for (const core::GroupSpec& group : space.groups) forgetting->longest = std::max(forgetting->longest, group.payload());
  const auto groups = static_cast<uint16_t>(space.groups.size());
  for (uint16_t group = 0; group < groups; ++group) {
    for (const ChunkKey& key : keys) forgetting->identities.push_back({name, key, GroupId{group}, Rank{0}});
  }
  std::function<void()> remove = [this, forgetting] { RemoveSome(forgetting); };
  // What is being encoded anew would be written back.
  bool recodes = false;
  {
    const absl::MutexLock lock(&mutex_);
    for (const auto& [job, known] : recodings_) {
      const std::shared_ptr<RemoteRecoding> recoding = known.lock();
      if (recoding == nullptr) continue;
      recodes = true;
      remove = [recoding, forgetting, then = std::move(remove)] { recoding->Leave(forgetting->forgotten.keys, then); };
    }
  }
  (recodes ? recodes_ : asks_).Post(std::move(remove));
}

void RemoteTier::RemoveSome(const std::shared_ptr<Forgetting>& forgetting) {
  const std::span<const Identity> left = std::span(forgetting->identities).subspan(forgetting->next);
  const auto most = static_cast<size_t>(std::max<uint64_t>(options_.guard.limits.operations / kRemovedShare, 1));
  const std::span<const Identity> some = left.first(std::min(left.size(), most));
  forgetting->next += some.size();
  const auto ended = [this, forgetting](const absl::Status& of_some) {
    Note(of_some);
    forgetting->status.Update(of_some);
    if (forgetting->next < forgetting->identities.size()) return asks_.Post([this, forgetting] { RemoveSome(forgetting); });
    const absl::Status& status = forgetting->status;
    const core::RemoteForgotten& forgotten = forgetting->forgotten;
    if (!status.ok()) {
      spdlog::warn("{} chunks that were cleared or moved may be found in remote:{}, for they couldn't be removed: {}",
                   forgotten.keys.size(), options_.name, std::string(status.message()));
    }
    ear_->Say(core::RemoteForgot{forgotten.job, forgotten.space, forgotten.keys, status});
  };
  const absl::Status taken = store_->Remove(some, forgetting->longest, MonotonicNow() + options_.write_for,
                                            [ended](const std::vector<Outcome>& outcomes) { ended(FirstError(outcomes)); });
  if (!taken.ok()) ended(taken);
}

void RemoteTier::AskStore(const std::shared_ptr<Asking>& asking) {
  const bool fresh = MarkersAreFresh(asking->space);
  {
    const absl::MutexLock lock(&asking->mutex);
    asking->parts = fresh ? 1 : 2;
  }
  AskExists(asking);
  if (!fresh) ReadMarkers(asking);
}

void RemoteTier::AskExists(const std::shared_ptr<Asking>& asking) {
  std::vector<Identity> identities;
  identities.reserve(asking->groups * asking->keys.size());
  Generation generation;
  {
    const absl::MutexLock lock(&mutex_);
    generation = generations_.Of(asking->space);
  }
  {
    const absl::MutexLock lock(&asking->mutex);
    asking->generation = generation;
  }
  const SpaceDigest name = RemoteGenerations::NameIn(asking->space, generation);
  for (uint16_t group = 0; group < asking->groups; ++group) {
    for (const ChunkKey& key : asking->keys) identities.push_back({name, key, GroupId{group}, Rank{0}});
  }
  const auto answered = [this, asking](absl::Status status, const std::vector<Outcome>& outcomes) {
    {
      const absl::MutexLock lock(&asking->mutex);
      asking->status.Update(status);
      asking->there.clear();
      for (const Outcome& outcome : outcomes) asking->there.push_back(outcome.found == Found::kYes);
    }
    AskedPart(asking);
  };
  const absl::Status taken = store_->Exists(identities, asking->deadline, [answered](const std::vector<Outcome>& outcomes) {
    answered(ErrorOfAll(outcomes), outcomes);
  });
  if (!taken.ok()) answered(taken, {});
}

void RemoteTier::ReadMarkers(const std::shared_ptr<Asking>& asking) {
  struct Bodies {
    MarkerBody all{}, space{};
  };
  const auto bodies = std::make_shared<Bodies>();
  const SealedStore::Get gets[] = {
      {MarkerOf(std::nullopt), 0, std::as_writable_bytes(std::span(bodies->all))},
      {MarkerOf(asking->space), 0, std::as_writable_bytes(std::span(bodies->space))},
  };
  const auto answered = [this, asking, bodies, asked = MonotonicNow()](absl::Status status,
                                                                       const std::vector<SealedStore::Got>& got) {
    const std::optional<SpaceDigest> of[] = {std::nullopt, asking->space};
    for (size_t i = 0; i < got.size(); ++i) status.Update(HearMarker(of[i], got[i], asked));
    {
      const absl::MutexLock lock(&asking->mutex);
      asking->status.Update(status);
    }
    AskedPart(asking);
  };
  const absl::Status taken =
      store_->Submit(gets, asking->deadline, [answered](const std::vector<SealedStore::Got>& got) { answered({}, got); });
  if (!taken.ok()) answered(taken, {});
}

void RemoteTier::AskedPart(const std::shared_ptr<Asking>& asking) {
  Generation now_counts;
  {
    const absl::MutexLock lock(&mutex_);
    now_counts = generations_.Of(asking->space);
  }
  absl::Status status;
  std::vector<bool> there;
  {
    const absl::MutexLock lock(&asking->mutex);
    if (--asking->parts > 0) return;
    if (asking->status.ok() && asking->generation != now_counts && !asking->keys.empty()) {
      // What was found is of a generation that was cleared.
      asking->parts = 1;
      asks_.Post([this, asking] { AskExists(asking); });
      return;
    }
    status = asking->status;
    there = std::move(asking->there);
  }
  if (!status.ok()) there.clear();
  asking->done(std::move(status), std::move(there));
}

}  // namespace kvist::daemon
