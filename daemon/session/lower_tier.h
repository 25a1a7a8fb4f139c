#ifndef KVIST_DAEMON_SESSION_LOWER_TIER_H_
#define KVIST_DAEMON_SESSION_LOWER_TIER_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "daemon/core/effects.h"
#include "daemon/core/events.h"
#include "daemon/core/space_spec.h"

namespace kvist::session {

// What carries out the core's effects on a tier below the slots.
//
// Lifecycle of a write or read: begun -> its event, once, when nothing touches the slots any more; never within the call. The destructor
//   waits until nothing touches a slot; what hasn't ended by then never does.
// Threads: all calls come on the reactor's, and don't block; events are said on any.
class LowerTier {
 public:
  using Event = std::variant<core::WriteFinished, core::ReadFinished, core::TierRead, core::DiskWritable, core::DiskTold,
                             core::SpaceFound, core::ChunksFound, core::PinFound, core::UsesFound, core::PlacesWanted,
                             core::PlacesLost, core::ClearKept, core::RemoteFound, core::RemoteForgot, core::RemoteCleared,
                             core::RemoteReachable, core::Recoded>;
  using Slots = std::vector<std::span<std::byte>>;  // [shard] the whole slot, header place and payload
  struct ChunkToRead {
    const core::SpaceSpec* space;
    core::ReadStarted read;
    Slots slots;
    // So many layers of a shard are there, from the first, and every checksum is right: called as often as there are more, on any thread, one
    // call of a shard after the other, before the end. A tier may leave it at the end.
    std::function<void(uint32_t shard, uint32_t layers)> arrived;
  };

  // Who hears the tier: the reactor. Threads: any but its own.
  class Ear {
   public:
    virtual ~Ear() = default;
    // The core hears it soon.
    virtual void Say(Event event) = 0;
    // The core has heard it when this returns; false: it never will, for the daemon ends.
    virtual bool Tell(Event event) = 0;
    // The core's name of a space that it has heard of; nothing when it couldn't be opened, or the daemon ends.
    virtual std::optional<SpaceId> FindSpace(const SpaceDigest& digest) = 0;
  };

  virtual ~LowerTier() = default;

  virtual void Write(const core::SpaceSpec& space, core::WriteStarted write, Slots slots) = 0;
  virtual void Read(std::vector<ChunkToRead> chunks) = 0;
  // What was written of the space (null: of all) is not to be found again by a later daemon; ClearKept when that is so, or can't be.
  virtual void Clear(const core::SpaceSpec* space, core::SpaceCleared cleared) = 0;
};

// The node's disks.
class DiskTier : public LowerTier {
 public:
  // No chunk is at these places any more; each was written or found by this tier.
  virtual void Free(core::PlacesFreed freed) = 0;
  // These chunks are not to be found again by a later daemon, though their places may be read until they are freed;
  // ClearKept when that is so, or can't be.
  virtual void Hide(const core::SpaceSpec& space, core::ChunksHidden hidden) = 0;
  // A later daemon is told of these pins (PinFound), soon; of those that are over it isn't.
  virtual void NotePins(const core::SpaceSpec& space, core::PinsNoted noted) = 0;
  // A later daemon is told of these uses (UsesFound), or not: it is advice. Of chunks that this tier has written or found.
  virtual void NoteUses(core::UsesNoted noted) = 0;
};

// A store beyond the node, which others may write to and read.
class RemoteTier : public LowerTier {
 public:
  // RemoteFound within a time of the tier's own, whatever becomes of the store.
  virtual void Ask(const core::SpaceSpec& space, core::RemoteAsked asked) = 0;
  // RemoteForgot, when they are gone or can't be removed.
  virtual void Forget(const core::SpaceSpec& space, core::RemoteForgotten forgotten) = 0;
  // Recoded, now and then, and when it has ended or was stopped.
  virtual void Recode(const core::SpaceSpec& space, core::RecodeStarted started) = 0;
  virtual void StopRecoding(core::JobId job) = 0;
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_LOWER_TIER_H_
