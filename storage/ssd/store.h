#ifndef KVIST_STORAGE_SSD_STORE_H_
#define KVIST_STORAGE_SSD_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/base/units.h"
#include "storage/ssd/catalog.h"
#include "storage/ssd/device.h"
#include "storage/ssd/format.h"
#include "storage/ssd/hands.h"
#include "storage/ssd/pin_rows.h"
#include "storage/ssd/record.h"
#include "storage/ssd/use_rows.h"
#include "storage/ssd/verdict.h"

namespace kvist::ssd {

struct StoreOptions {
  std::vector<std::string>
      directories;   // one a device, 1 to kDevicesMax; made when they aren't there. The first has the catalog
  Bytes capacity{};  // of all segment files together, spread evenly; at least four segments a device
  // A segment file of a new store; one that is there keeps its own, while four to 4,096 of them make a device. Larger: fewer
  // files, and more is given back at once.
  Bytes segment = MiB(256);
  Bytes bytes_per_second{};  // written to each device at most, for endurance; 0: as fast as it goes
  bool io_uring = true;      // false: threads, even where the system allows it
  // All that was written is read again once in that time, to find what a disk has lost; zero: never.
  absl::Duration scrub_every = absl::Hours(24);

  // Tests only: puts something between the store and each device, or in its place.
  std::function<absl::StatusOr<std::unique_ptr<Device>>(const DeviceOptions&)> open_device = OpenDevice;
  // Tests only: who works, and which catalog, in place of threads and of the RocksDB in the first directory.
  Hands* hands = nullptr;
  std::function<std::unique_ptr<Catalog>()> catalog;
  // Tests only: called before each step that a crash can separate from the next, by its name, on the thread that takes it.
  std::function<void(std::string_view step)> before_step;

  absl::Status Validate() const;  // names the field
};

// What a shard of a chunk is: the same for all shards of a chunk.
struct ShardShape {
  uint32_t layers = 0;  // at most kLayersMax; each has a checksum of its own
  Bytes layer_bytes{};  // of one layer as it lies in the slot; the payload is all layers, one behind the other
  SlotOrder order = SlotOrder::kLayerMajor;
  Codec codec = Codec::kRaw;
  // Of a payload that a codec has made, which lies in the slot in its place: fewer than all layers have. A read takes one of any length that has
  // as many units.
  Bytes encoded{};

  Bytes decoded() const { return layer_bytes * layers; }
  Bytes payload() const { return codec == Codec::kRaw ? decoded() : encoded; }
  uint32_t runs() const { return codec == Codec::kRaw ? layers : 1; }
  uint32_t units() const { return UnitsFor(payload()); }
};

// What was found at the start.
struct FoundSpace {
  uint32_t number = 0;  // by which rows name it
  SpaceDigest digest;
  std::string description;  // as it was given to OpenSpace
};
struct FoundChunk {
  ChunkId id;
  std::optional<ChunkKey> parent;
  uint16_t hints = 0;
  uint32_t units = 0;         // of each of its records
  Codec codec = Codec::kRaw;  // of them
  std::vector<Place> places;  // [shard]
};
struct Recovery {
  absl::Status status;   // OK; Cancelled: the store was closed before
  bool rebuilt = false;  // the catalog was new or unusable: chunks were found by their records' headers
  std::string message;   // what was wrong with the catalog, and where it lies now; empty: nothing
  uint64_t chunks = 0;   // found
  uint64_t adopted =
      0;  // of them: by their headers, for the catalog had lost its end, or they were on their way into it when the process died
  uint64_t cleared = 0;    // rows or records that a clear has emptied
  uint64_t skipped = 0;    // rows that didn't parse, or whose segment isn't there (any more, or in that use)
  uint64_t withheld = 0;   // of them: in segments whose headers the disk refuses, and kept for a later start
  absl::Duration elapsed;  // of all of it
};

// A record that lies in a segment that is wanted back.
struct PlaceWanted {
  ChunkId id;
  uint32_t shard = 0;
  uint32_t units = 0;
  Place place;
};

// Whose chunks they are. Called on the store's threads, several at a time: it hands over and returns, but for Found and WantsBack, which
// may wait as long as the owner's thread takes, and must not wait for the store.
class StoreOwner {
 public:
  using Ticket = uint64_t;
  virtual ~StoreOwner() = default;

  // OK: `places` [shard]; all shards are on the disk and flushed, and the catalog says so: it survives kill -9 and a power cut.
  // ResourceExhausted: no room, yet; Unavailable: the disk fails; Cancelled: the store was closed, the space cleared meanwhile, or a
  // later write of the chunk is durable; InvalidArgument: what Write was given can't be. Nothing reads the slots any more, and nothing is
  // left to free.
  virtual void Written(Ticket ticket, absl::Status status, std::vector<Place> places) = 0;
  // OK: the slots hold what was stored, every checksum is right. DataLoss: what lies there is something else, or damaged; Unavailable:
  // the disk fails, or the segment was fenced; Cancelled: the store was closed. Nothing touches the slots any more.
  virtual void Read(Ticket ticket, absl::Status status) = 0;
  // Whether writes can be taken; said at least once, when all devices are ready for them, and not before the start. `why`: when they can't, in words.
  virtual void Writable(bool writable, const std::string& why) = 0;

  // Spaces come before their chunks, parents before children. All that is found counts as wanted: what the owner doesn't take it
  // gives to Free before it returns, or after. Among that is a chunk that it has written meanwhile, as `replaced`, and whatever it has
  // cleared meanwhile: that may have been on its way here. false: no more, please
  // (Recovery is Cancelled, and no segment that was found is used again before the next start).
  virtual bool Found(std::vector<FoundSpace> spaces, std::vector<FoundChunk> chunks) = 0;
  // Behind all chunks, once, when recovery goes well: pins as NotePins was told last of each, by this daemon or an earlier one. A catalog that is
  // lost takes them along. `withheld`: some chunks are kept for a later start (Recovery). May wait, as Found.
  virtual void FoundPins(std::vector<PinRow> pins, bool withheld) = 0;
  // Behind all chunks, once, when recovery goes well and there are any: what NoteUses was told of the latest periods, as of now (UsesNote). May wait.
  virtual void FoundUses(std::vector<UsesNote> uses) = 0;
  virtual void Recovered(const Recovery& recovery) = 0;

  // The segment of these records is to be used again. The owner frees what it can do without, and writes the rest again (Write, then
  // Free with `replaced`); what it doesn't know any more it ignores. Asked again, later, while something of the segment is wanted. What can't
  // be written again for want of room it has to do without: nothing else makes room.
  virtual void WantsBack(std::vector<PlaceWanted> records) = 0;
  // What lies there isn't what was written, or nothing is: nobody will be able to read it. The owner frees what it has there. May wait, as
  // WantsBack.
  virtual void Damaged(std::vector<PlaceWanted> records) = 0;
  // A write or a sync beside these failed, and nothing of their segment is read any more, nor found by the next start: they were durable, and
  // aren't. The owner frees what it has there, and may write it again: elsewhere it goes. May wait, as WantsBack.
  virtual void GivenUp(std::vector<PlaceWanted> records) = 0;
};

// All of a node's SSD tier: a drive with a thread of its own for each directory, the catalog, recovery at the start, and giving
// segments back. Chunks in, all shards or none; durable when it says so.
//
// Lifecycle of a chunk: Write -> Written -> Read any number of times -> Free, or Leave. A chunk is named by its ChunkId in the catalog; writing a
//   chunk that is there already replaces its row, and the owner frees the places of before. Of two writes of one chunk that run at the
//   same time the later call's row stays, whichever ends first: the other one may be of before a clear.
// Durability: a segment's row is committed before its header is written; data, then fdatasync, then the chunk's row, then Written.
//   Segments are released when nothing in them is wanted, and the commits that erase rows of theirs are durable.
// Spaces: a number names one while the store lives, and in its rows for ever.
// Shards of a chunk lie on different devices: DeviceFor(shard).
// Recovery: begins with Start, beside reads and writes. Until Recovered no segment that was found is used again.
// Errors: a device that fails makes Written and Read fail and Writable false; it never stops the process. A catalog that is lost is
//   rebuilt from the headers when the store starts. One that takes no more commits stays readable: nothing is Written or
//   released until the next start, which finds all that was called durable; a full disk is waited for.
// Threads: any may call; nothing blocks but Open and the destructor. Slots belong to the store until Written or Read.
class Store {
 public:
  using Ticket = StoreOwner::Ticket;
  using Slots = std::vector<std::span<std::byte>>;  // [shard] the whole slot: header place and payload, on a 4 KiB boundary
  struct ChunkToWrite {
    Ticket ticket = 0;  // the owner's; none that is being written
    ChunkId id;
    std::optional<ChunkKey> parent;
    uint16_t hints = 0;
    ShardShape shape;
    Slots slots;
    Checksums checksums = Checksums::kCompute;
  };
  struct ChunkToRead {
    Ticket ticket = 0;  // the owner's; none that is being read
    ChunkId id;
    ShardShape shape;
    std::vector<Place> places;  // [shard]
    Slots slots;
    // Somebody wants the first layers of all chunks of the call before the rest of any: then they are read so, and urgently.
    bool by_layer = false;
    // Hears, on a device's thread, one call of a shard after the other, that so many layers of it are there, from the first, every checksum
    // right; all comes before Read of the owner. It hands over and returns. May be empty. Of what a codec has made it hears nothing.
    std::function<void(uint32_t shard, uint32_t layers)> arrived;
  };

  // Opens the directories and the catalog. Reads two units of each segment; recovery is Start's.
  // Errors: FailedPrecondition  another process uses the store, or it was made by a later version, or a directory is another one's.
  //         InvalidArgument  names the option. Others of the file system, which name the path.
  static absl::StatusOr<std::unique_ptr<Store>> Open(StoreOptions options, StoreOwner* owner);
  // Ends what waits with Cancelled, waits for what is on its way and for the commits, and marks a clean end. Calls of the owner that
  // run are waited for; none comes after.
  ~Store();

  void Start();
  // Slots lie in this memory, which has been touched: I/O with it will cost less. It outlives the store. (Memory that isn't touched would be,
  // 1 GiB at a time with all of the process's mappings locked: a second and more.)
  void Register(std::span<std::byte> memory);

  // The number of a space, a new one when none has that digest. `description`: what the owner needs to know it again, at most kRowDescriptionMax.
  uint32_t OpenSpace(const SpaceDigest& digest, std::string description);
  void Write(ChunkToWrite chunk);
  void Read(std::vector<ChunkToRead> chunks);
  // What has been given to Write so far becomes durable without waiting for company.
  void Flush();
  // The owner doesn't want what lies there any more: the chunk's row goes, unless it was `replaced` by that of a newer Write.
  void Free(const ChunkId& id, uint32_t units, std::vector<Place> places, bool replaced = false);
  // The owner forgets what lies there, for it couldn't be read, but the next start may find it: the chunk's row stays until the chunk is
  // written again, or the room is wanted.
  void Leave(const ChunkId& id, uint32_t units, std::vector<Place> places);
  // What was given to Write before, of that space or of all, is gone, and no rebuild brings it back. The owner frees the places, too.
  // `done`: when that is durable, or why it isn't; on a thread of the store's.
  void Clear(std::optional<uint32_t> space, std::function<void(absl::Status)> done);

  // No start that finds the catalog finds what was given to Write before of these chunks, which are of the space, nor what was given to Leave
  // of the space; their places may be read until they are freed. A rebuild may bring some back, as it does what was freed (RebuiltRows).
  // `done`: as Clear's; when recovery has ended, and the writes of before have or a second has passed; not well where recovery doesn't end well.
  void Hide(uint32_t space, std::vector<ChunkId> chunks, std::function<void(absl::Status)> done);

  // The next start is told of these pins as they are now (FoundPins): rows that mean something to the owner, of spaces that have a number. Changes
  // that follow each other faster than the catalog takes them are made one.
  void NotePins(std::vector<PinChange> changes);
  // `done`: when all that NotePins was given before is durable, or why some since the last one isn't; on a thread of the store's.
  void SettlePins(std::function<void(absl::Status)> done);

  // The next start is told of these uses (FoundUses), if they are among the latest UseRows::kPeriods periods: of most, for nothing waits until they
  // are durable, and some may be lost. A rebuild knows of none.
  void NoteUses(std::vector<UsesNote> notes);

  // For metrics and kvistctl ssd.
  struct DeviceRow {
    std::string directory;
    std::string how;                    // Device::Report
    std::vector<std::string> warnings;  // of that, too
    bool writable = true;               // else `why`
    std::string why;
    uint64_t segments = 0, free = 0, fenced = 0;
    Bytes capacity{};
    Bytes live{};             // of records that are wanted
    Bytes written{}, read{};  // since the start, as are those below
    uint64_t records_written = 0, records_read = 0, syncs = 0;
    uint64_t write_errors = 0, sync_errors = 0, read_errors = 0;
    uint64_t verdicts[kVerdicts] = {};  // of what was read
    uint64_t in_flight = 0, waiting = 0;
    uint64_t segments_released = 0;
  };
  // What was read again to see whether it is still there; since the start.
  struct Scrubbed {
    uint64_t passes = 0;  // over all full segments
    uint64_t records = 0;
    Bytes read{};
    uint64_t damaged = 0;     // that were wanted, and aren't as they were written
    uint64_t unreadable = 0;  // that the disk refused to give
    absl::Duration last;      // the last whole pass took
  };
  struct Status {
    std::vector<DeviceRow> devices;
    Scrubbed scrubbed;
    bool recovering = false;
    uint64_t commits = 0, commits_failed = 0;
    std::string catalog;              // what is wrong with it; empty: nothing
    uint64_t catalogs_set_aside = 0;  // that couldn't be used, since the process began
  };
  Status status() const;

 private:
  class State;
  explicit Store(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_STORE_H_
