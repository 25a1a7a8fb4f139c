#ifndef KVIST_STORAGE_SSD_STORE_DEVICE_H_
#define KVIST_STORAGE_SSD_STORE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/ssd/drive.h"
#include "storage/ssd/store.h"

namespace kvist::ssd {

// One directory of a store: a drive, what is to be done on it next, and what has to be said of it. With a thread of its own, or without:
// who calls Turn is the device's owner then.
//
// Lifecycle: made -> Start, or Turn by the owner -> Stop: what waits is given up, what is on its way ends -> destroyed.
// A segment that was found goes back when nothing of it is wanted and Recovered has been called; others when nothing of it is wanted.
class StoreDevice {
 public:
  // Hears what happens, on the device's thread. It hands over and returns.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void ShardWritten(const Writer::Outcome& outcome) = 0;
    // As often as more of it is there, and at its end.
    virtual void ShardRead(const Reader::Progress& progress) = 0;
    // The use of a segment begins: Admit, when its row is committed.
    virtual void Announced(const SegmentHeader& header) = 0;
    virtual void Settled(uint32_t segment) = 0;
    virtual void Fenced(uint32_t segment) = 0;
    // Full, and nothing in it is wanted: Release, when that is committed.
    virtual void Empty(uint32_t segment) = 0;
    // Few segments are free: whoever wants what is in this one should do without, or write it elsewhere. Said again after AskAgain.
    virtual void WantsBack(const SegmentHeader& header) = 0;
    // Once it goes with a thread of its own, and whenever that changes.
    virtual void Writable(uint32_t device, bool writable, const std::string& why) = 0;
  };
  struct Options {
    std::string directory;
    uint32_t number = 0;
    Drive::Options drive;
    std::vector<SegmentHeader> found;  // those that are good
    std::vector<uint32_t> withheld;    // segments that hold something, and the disk doesn't say what
    uint64_t epoch = 0;                // the highest that is known, of all devices
    bool probe = true;
  };
  using Task = std::function<void(StoreDevice&)>;

  StoreDevice(std::unique_ptr<Device> device, Options options, Listener* listener);
  ~StoreDevice();
  StoreDevice(const StoreDevice&) = delete;
  StoreDevice& operator=(const StoreDevice&) = delete;

  void Start();
  // What comes before the first Turn: looks how the disk is, and says whether it can be written. Start's thread does it.
  void Begin();
  // Any thread: runs it on the device's.
  void Post(Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Any thread, as Store::Register.
  void Register(std::span<std::byte> memory);
  // Any thread. It goes on until nothing is on its way; Join waits for that.
  void Stop();
  void Join();
  Store::DeviceRow row() const ABSL_LOCKS_EXCLUDED(mutex_);

  // In tasks, and of the owner.
  void Turn(absl::Time now, absl::Time until) ABSL_LOCKS_EXCLUDED(mutex_);
  void Write(const Writer::Shard& shard);
  void Read(std::span<const Reader::Shard> shards, Reader::Order order);
  void AddLive(uint32_t segment, uint32_t units) { drive_.segments().AddLive(segment, units); }
  void Kill(Place place, uint32_t units);
  void Fence(uint32_t segment);  // one that was found
  void Release(uint32_t segment);
  // Puts on the disk what was written to these before. `failed`: those for which the disk refuses that; for want of descriptors it is left
  // undone, because fencing is for ever. One call at a time.
  void Sync(const std::vector<uint32_t>& segments, std::function<void(std::vector<uint32_t> failed)> synced);
  void Recovered();
  void AskAgain(absl::Time now);
  Drive& drive() { return drive_; }
  bool ended() const { return stopping_ && drive_.idle(); }

 private:
  struct Syncing final : IoOwner {
    void Ended(uint64_t tag, int error) override;
    size_t left = 0;
    std::vector<uint32_t> failed;
    std::function<void(std::vector<uint32_t> failed)> synced;
  };

  void Run();
  void Probe();
  void Tell();
  bool TellSome();
  void TellEmpty();
  void AskForRoom(absl::Time now);
  void GiveUpIfStarved(absl::Time now);
  void NoteRead(int error);
  void SetWritable(bool writable, const std::string& why);
  void Publish() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  Listener* const listener_;
  Syncing syncing_;  // before the drive, which tells it
  Drive drive_;

  // The device's thread's.
  std::vector<uint32_t> look_at_;                // segments that may have become empty
  absl::flat_hash_set<uint32_t> released_soon_;  // told to be empty
  absl::flat_hash_set<uint32_t> asked_for_;      // since the last release
  bool recovered_ = false;
  bool asking_ = false;
  absl::Time ask_at_ = absl::InfinitePast();
  absl::Time ask_for_surplus_at_ = absl::InfinitePast();
  uint64_t asked_at_records_ = 0;
  absl::Time starved_since_ = absl::InfiniteFuture();
  absl::Time retry_at_ = absl::InfiniteFuture();
  int failures_ = 0;           // segments that were fenced since a record was last durable
  uint32_t read_trouble_ = 0;  // rises with each read that fails, falls with each that doesn't
  bool unreadable_ = false;    // until the next start
  bool writable_ = true;
  std::string why_;
  uint64_t released_ = 0;
  bool stopping_ = false;
  absl::Time published_ = absl::InfinitePast();

  mutable absl::Mutex mutex_;
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  Store::DeviceRow row_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_STORE_DEVICE_H_
