#include "daemon/remote_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "daemon/kv_shape.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

using remote::Identity;
using remote::Outcome;
using remote::SealedStore;

constexpr absl::Duration kProbeEvery = absl::Milliseconds(500);
constexpr uint16_t kProbed = 8;  // objects at once
constexpr absl::Duration kLookEvery = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteTier>> RemoteTier::Open(Options options, std::unique_ptr<remote::RemoteStore> store) {
  RemoteGenerations generations;
  if (!options.generations.empty()) { KVIST_ASSIGN_OR_RETURN(generations, RemoteGenerations::Open(options.generations)); }
  KVIST_ASSIGN_OR_RETURN(std::unique_ptr<remote::GuardedStore> guarded,
                         remote::GuardedStore::Create(std::move(store), options.guard));
  auto tier = absl::WrapUnique(new RemoteTier(std::move(options), std::move(generations)));
  {
    const absl::MutexLock lock(&tier->mutex_);
    for (const std::optional<SpaceDigest>& space : tier->generations_.Cleared()) tier->markers_[space].untold = true;
  }
  tier->guard_ = guarded.get();
  tier->store_ = std::make_unique<SealedStore>(std::move(guarded), tier->options_.sealing);
  return tier;
}

RemoteTier::~RemoteTier() {
  for (TaskThread* thread : {&asks_, &works_, &decodes_, &recodes_}) thread->Stop();
}

void RemoteTier::Start() {
  asks_.Start([this] { return LookAfter(); });
  for (TaskThread* thread : {&works_, &decodes_, &recodes_}) thread->Start({});
}

RemoteTier::Status RemoteTier::status() const {
  Status status;
  status.name = options_.name;
  status.where = options_.where;
  status.encrypted = options_.sealing.encrypt;
  status.load = store_->load();
  status.guard = guard_->figures();
  status.verdicts = store_->verdicts();
  const absl::MutexLock lock(&mutex_);
  status.reachable = reachable_;
  status.why_not = reachable_ ? "" : why_not_;
  status.waiting_reads = reads_.size();
  status.written = written_;
  status.read = read_;
  return status;
}

// ---- Whether it answers -----------------------------------------------------------------------------------------------------

absl::Duration RemoteTier::LookAfter() {
  bool reachable = false, untold = false, unkept = false;
  std::vector<std::function<void()>> recode;
  {
    const absl::MutexLock lock(&mutex_);
    recode.swap(recode_later_);
    reachable = reachable_;
    unkept = !unkept_.empty();
    for (const auto& [space, marker] : markers_) untold = untold || marker.untold;
  }
  if (unkept) works_.Post([this] { KeepGenerations(); });
  for (std::function<void()>& task : recode) recodes_.Post(std::move(task));
  if (!reachable) {
    Probe();
    return kProbeEvery;
  }
  if (untold) TellMarkers();
  return kLookEvery;  // a put may fail later, or the file
}

// Whether it answers at all: it is asked for objects that needn't be there, several, so that not one server of a store decides.
void RemoteTier::Probe() {
  std::array<Identity, kProbed> any;
  any.fill(MarkerOf(std::nullopt));
  for (uint16_t i = 0; i < kProbed; ++i) any[i].shard = Rank{i};
  const absl::Status asked =
      store_->Exists(any, MonotonicNow() + options_.read_for, [this](const std::vector<Outcome>& outcomes) {
        const absl::Status status = ErrorOfAll(outcomes);
        if (!status.ok()) return Note(status);
        SayReachable(true, "");
      });
  if (!asked.ok()) Note(asked);
}

void RemoteTier::Note(const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status)) return;
  // One answer that is late or an error says nothing of the next; the breaker counts them.
  const bool closed = guard_->figures().breaker == remote::Breaker::State::kClosed;
  bool reachable = false;
  {
    const absl::MutexLock lock(&mutex_);
    reachable = reachable_;
    if (!reachable) why_not_ = std::string(status.message());
  }
  if (reachable && !closed) SayReachable(false, std::string(status.message()));
}

void RemoteTier::SayReachable(bool reachable, std::string why_not) {
  {
    const absl::MutexLock lock(&mutex_);
    if (reachable_ == reachable) return;
    reachable_ = reachable;
    why_not_ = why_not;
    ear_->Say(core::RemoteReachable{reachable});  // here, so that the core hears of both in their order
  }
  asks_.Wake();
  // A log may take its time, and the reactor wants the mutex.
  if (reachable) {
    spdlog::info("remote:{} answers: {}", options_.name, options_.where);
  } else {
    spdlog::warn("remote:{} isn't asked until it answers again: {}", options_.name, why_not);
  }
}

std::shared_ptr<const RemoteTier::Shapes> RemoteTier::ShapesOf(const core::SpaceSpec& space) {
  const absl::MutexLock lock(&mutex_);
  std::shared_ptr<const Shapes>& known = shapes_[space.digest];
  if (known != nullptr) return known;
  known = std::make_shared<const Shapes>(daemon::ShapesOf(space));
  return known;
}

// ---- Encoding another way -----------------------------------------------------------------------------------------------------

void RemoteTier::Recode(const core::SpaceSpec& space, core::RecodeStarted started) {
  RemoteRecoding::Prompt prompt{.name = NameOf(space.digest),
                                .shapes = *ShapesOf(space),
                                .keys = std::move(started.keys),
                                .read_for = options_.read_for,
                                .write_for = options_.write_for};
  if (started.method != 0) prompt.method = static_cast<codec::Method>(started.method);
  for (const core::GroupSpec& group : space.groups) prompt.shards.push_back(group.shards());
  const auto recoding = std::make_shared<RemoteRecoding>(
      store_.get(), std::move(prompt), [this](std::function<void()> task) { recodes_.Post(std::move(task)); },
      [this](std::function<void()> task) {
        const absl::MutexLock lock(&mutex_);
        recode_later_.push_back(std::move(task));
      },
      [this, job = started.job](const RemoteRecoding::Tally& tally) {
        ear_->Say(core::Recoded{.job = job,
                                .done = tally.chunks + tally.already + tally.missing + tally.failed,
                                .chunks = tally.chunks,
                                .already = tally.already,
                                .left = tally.failed,
                                .bytes = tally.before,
                                .bytes_after = tally.after,
                                .loss = tally.loss,
                                .ended = tally.ended,
                                .status = tally.status});
      });
  std::vector<std::shared_ptr<RemoteRecoding>> others;
  {
    const absl::MutexLock lock(&mutex_);
    std::erase_if(recodings_, [](const auto& other) { return other.second.expired(); });
    for (const auto& [job, known] : recodings_) {
      if (std::shared_ptr<RemoteRecoding> other = known.lock()) others.push_back(std::move(other));
    }
    recodings_[started.job] = recoding;
  }
  recodes_.Post([recoding, others = std::move(others)] { recoding->Start(others); });
}

void RemoteTier::StopRecoding(core::JobId job) {
  std::shared_ptr<RemoteRecoding> recoding;
  {
    const absl::MutexLock lock(&mutex_);
    if (const auto known = recodings_.find(job); known != recodings_.end()) recoding = known->second.lock();
  }
  if (recoding != nullptr) recoding->Stop();
}

}  // namespace kvist::daemon
