// Markers: what tells this node of other nodes' clears, and them of this one's.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/remote_tier.h"
#include "storage/base/clock.h"
#include "storage/base/kept_file.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

using remote::Identity;
using remote::SealedStore;
using remote::Verdict;

// How long what a marker says is believed: so late a node sees another one's clear.
constexpr absl::Duration kMarkerFresh = absl::Seconds(1);
// No space has so many groups: an object of it is a marker.
constexpr GroupId kMarkerGroup{UINT16_MAX};

}  // namespace

SpaceDigest RemoteTier::NameOf(const SpaceDigest& space) {
  const absl::MutexLock lock(&mutex_);
  return RemoteGenerations::NameIn(space, generations_.Of(space));
}

Identity RemoteTier::MarkerOf(const std::optional<SpaceDigest>& space) {
  Identity marker{};
  if (space.has_value()) marker.space = *space;
  marker.group = kMarkerGroup;
  return marker;
}

void RemoteTier::Clear(const core::SpaceSpec* space, core::SpaceCleared cleared) {
  const std::optional<SpaceDigest> digest = space != nullptr ? std::optional(space->digest) : std::nullopt;
  {
    const absl::MutexLock lock(&mutex_);
    // Most likely above what other nodes have set; what is read says whether it is.
    generations_.Raise(digest, std::max<uint64_t>(generations_.Number(digest) + 1, absl::ToUnixMicros(absl::Now())));
    Marker& marker = markers_[digest];
    marker.untold = true;
    marker.cleared = MonotonicNow();
    unkept_.push_back({cleared.job, digest, generations_.Number(digest)});
  }
  works_.Post([this] { KeepGenerations(); });
  asks_.Wake();
}

void RemoteTier::KeepGenerations() {
  RemoteGenerations now;
  {
    const absl::MutexLock lock(&mutex_);
    now = generations_;
  }
  const absl::Status kept = options_.generations.empty() ? absl::OkStatus() : KeepFile(options_.generations, now.Text());
  bool failed_before = false;
  {
    const absl::MutexLock lock(&mutex_);
    failed_before = std::exchange(file_fails_, !kept.ok());
    if (kept.ok()) SayKept([&now](const Unkept& clear) { return clear.number <= now.Number(clear.space); });
  }
  if (!kept.ok() && !failed_before) {
    spdlog::error("what was cleared may be found again in remote:{} after a restart, for it couldn't be noted: {}",
                  options_.name, std::string(kept.message()));
  }
}

void RemoteTier::SayKept(const std::function<bool(const Unkept& clear)>& which) {
  std::erase_if(unkept_, [this, &which](const Unkept& clear) {
    if (!which(clear)) return false;
    ear_->Say(core::ClearKept{clear.job, core::Tier::kRemote});
    return true;
  });
}

absl::Status RemoteTier::HearMarker(const std::optional<SpaceDigest>& space, const SealedStore::Got& got, absl::Time asked) {
  KVIST_RETURN_IF_ERROR(got.status);
  // What isn't one tells nothing: were it taken for none, what was cleared could be found.
  if (got.verdict != Verdict::kGood && got.verdict != Verdict::kMissing)
    return absl::DataLossError(absl::StrCat("a marker of the remote store is ", remote::NameOf(got.verdict)));
  const uint64_t number = got.verdict == Verdict::kGood ? got.said.epoch : 0;
  bool raised = false, tell = false;
  {
    const absl::MutexLock lock(&mutex_);
    Marker& marker = markers_[space];
    raised = generations_.Raise(space, marker.cleared.has_value() ? number + 1 : number);
    if (raised) ear_->Say(core::RemoteCleared{space});
    if (marker.cleared < asked) marker.cleared.reset();
    marker.read = asked;
    marker.untold = number < generations_.Number(space);
    tell = marker.untold && !marker.telling;
    if (!marker.untold) SayKept([&space](const Unkept& clear) { return clear.space == space; });
  }
  if (raised) works_.Post([this] { KeepGenerations(); });
  if (tell) asks_.Wake();
  return absl::OkStatus();
}

void RemoteTier::TellMarkers() {
  std::vector<std::optional<SpaceDigest>> untold;
  {
    const absl::MutexLock lock(&mutex_);
    for (auto& [space, marker] : markers_) {
      if (!marker.untold || marker.telling) continue;
      marker.telling = true;
      untold.push_back(space);
    }
  }
  for (const std::optional<SpaceDigest>& space : untold) TellMarker(space);
}

void RemoteTier::TellMarker(std::optional<SpaceDigest> space) {
  const auto body = std::make_shared<MarkerBody>();
  const auto answered = [this, space, body, asked = MonotonicNow()](const SealedStore::Got& got) {
    Note(got.status);
    const absl::Status heard = HearMarker(space, got, asked);
    uint64_t number = 0;
    {
      const absl::MutexLock lock(&mutex_);
      Marker& marker = markers_[space];
      // Only a clear is put over what is no marker: by any other number what a later clear took could be found again.
      const bool over_none = absl::IsDataLoss(heard) && marker.cleared.has_value() && *marker.cleared < asked;
      marker.telling = marker.untold && (over_none || (heard.ok() && !marker.cleared.has_value()));
      if (marker.telling) number = generations_.Number(space);
      if (heard.ok() && marker.cleared.has_value()) asks_.Wake();  // once more: it was cleared meanwhile
    }
    if (number > 0) PutMarker(space, number);
  };
  const SealedStore::Get get{MarkerOf(space), 0, std::as_writable_bytes(std::span(*body))};
  const absl::Status taken = store_->Submit({&get, 1}, MonotonicNow() + options_.read_for,
                                            [answered](const std::vector<SealedStore::Got>& got) { answered(got.front()); });
  if (!taken.ok()) answered({.status = taken});
}

void RemoteTier::PutMarker(std::optional<SpaceDigest> space, uint64_t number) {
  const auto body = std::make_shared<MarkerBody>(MarkerBody{number});
  const SealedStore::Put put{MarkerOf(space), {.epoch = number}, std::as_bytes(std::span(*body))};
  // It stays untold: another node may have put a smaller one at the same time, so it is read again, by the next look at the latest.
  const auto told = [this, space, number, body](const absl::Status& status) {
    Note(status);
    const absl::MutexLock lock(&mutex_);
    markers_[space].telling = false;
    if (status.ok() && number < generations_.Number(space)) asks_.Wake();
  };
  const absl::Status taken = store_->Submit({&put, 1}, MonotonicNow() + options_.write_for,
                                            [told](const std::vector<absl::Status>& statuses) { told(statuses.front()); });
  if (!taken.ok()) told(taken);
}

bool RemoteTier::MayReadMarkers(const SpaceDigest& space) {
  const absl::MutexLock lock(&mutex_);
  Marker& marker = markers_[space];
  const absl::Time now = MonotonicNow();
  if (marker.asked > now - kMarkerFresh) return false;
  marker.asked = now;
  return true;
}

bool RemoteTier::MarkersAreFresh(const SpaceDigest& space) {
  const absl::MutexLock lock(&mutex_);
  const absl::Time since = MonotonicNow() - kMarkerFresh;
  return markers_[space].read > since && markers_[std::nullopt].read > since;
}

}  // namespace kvist::daemon
