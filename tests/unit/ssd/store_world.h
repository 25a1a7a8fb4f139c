#ifndef KVIST_TESTS_UNIT_SSD_STORE_WORLD_H_
#define KVIST_TESTS_UNIT_SSD_STORE_WORLD_H_

#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/check.h"
#include "storage/ssd/store.h"
#include "tests/unit/ssd/records.h"

namespace kvist::ssd::test {

// A plain owner of a store: keeps what it was told, chunk n of a space being n's bytes, and does without the oldest when segments are wanted back.
class StoreWorld final : public StoreOwner {
 public:
  static constexpr absl::Duration kLong = absl::Seconds(60);  // nothing waits longer, unless it hangs
  static constexpr ShardShape kShape{.layers = 4, .layer_bytes = {6000}, .order = SlotOrder::kLayerMajor};

  struct Chunk {
    uint64_t version = 0;
    std::vector<Place> places;
    ShardShape shape;
  };
  struct Options {
    uint32_t shards = 3;
    ShardShape shape = kShape;
    bool gives_back = true;
    bool keeps_newest = true;  // of what is wanted back: writes the newer half again
  };
  StoreWorld() : StoreWorld(Options{}) {}
  explicit StoreWorld(Options o) : options(o) {}

  static ChunkId IdOf(uint32_t space, uint64_t n) { return {static_cast<uint32_t>(n % 7), space, 1, DigestOf<ChunkKey>(n)}; }
  static uint64_t NumberOf(const ChunkId& id) {
    uint64_t n = 0;
    for (int i = 7; i >= 0; --i) n = n << 8 | id.key.bytes[static_cast<size_t>(i)];
    return n;
  }

  void Open(StoreOptions o) {
    auto opened = Store::Open(std::move(o), this);
    KVIST_CHECK(opened.ok());
    store = *std::move(opened);
    for_callbacks = store.get();
  }
  void Close() { store.reset(); }

  // So chunks are written from now on.
  void Encode(Codec codec, Bytes bytes) {
    const absl::MutexLock lock(&mutex);
    shape.codec = codec;
    shape.encoded = bytes;
  }

  // Begins a write; its ticket.
  uint64_t Begin(uint32_t space, uint64_t n, uint64_t version = 0) {
    uint64_t ticket = 0;
    Store::ChunkToWrite chunk;
    {
      const absl::MutexLock lock(&mutex);
      ticket = ++next_ticket;
      InFlight& of = in_flight[ticket];
      of.id = IdOf(space, n);
      of.version = version;
      of.shape = chunk.shape = shape;
      for (uint32_t shard = 0; shard < options.shards; ++shard) {
        AlignedBytes& slot = of.slots.emplace_back(kUnit * shape.units());
        FillPayload(slot.data(), Seed(space, n, version, shard), shape.payload().value);
        chunk.slots.push_back({slot.data(), slot.size().value});
      }
      chunk.id = of.id;
    }
    chunk.ticket = ticket;
    if (n % 7 != 0) chunk.parent = DigestOf<ChunkKey>(n - 1);
    chunk.hints = static_cast<uint16_t>(n);
    for_callbacks->Write(std::move(chunk));
    return ticket;
  }
  absl::Status WaitFor(uint64_t ticket) {
    const absl::MutexLock lock(&mutex);
    while (!results.contains(ticket)) Wait();
    return results.at(ticket);
  }
  absl::Status WriteNow(uint32_t space, uint64_t n, uint64_t version = 0) {
    const uint64_t ticket = Begin(space, n, version);
    store->Flush();
    return WaitFor(ticket);
  }
  // Reads a chunk that is there, and compares.
  absl::Status ReadNow(uint32_t space, uint64_t n) {
    Store::ChunkToRead chunk;
    std::vector<AlignedBytes> slots;
    uint64_t version = 0;
    {
      const absl::MutexLock lock(&mutex);
      const auto it = chunks.find({space, n});
      if (it == chunks.end()) return absl::NotFoundError("the owner doesn't know it");
      chunk.places = it->second.places;
      version = it->second.version;
      chunk.shape = it->second.shape;
      chunk.ticket = ++next_ticket;
    }
    chunk.id = IdOf(space, n);
    const ShardShape of = chunk.shape;
    const bool raw = of.codec == Codec::kRaw;
    for (uint32_t shard = 0; shard < options.shards; ++shard) {
      AlignedBytes& slot = slots.emplace_back(kUnit * of.units());
      chunk.slots.push_back({slot.data(), slot.size().value});
    }
    const uint64_t ticket = chunk.ticket;
    // What was said to be there stays as it was then.
    struct Arrived {
      uint32_t layers = 0;
      size_t hash = 0;
    };
    std::vector<Arrived> arrived(options.shards);  // each its device's, until the end
    const auto hash = [&, slots = chunk.slots](uint32_t shard, uint32_t layers) {
      const auto* bytes = reinterpret_cast<const char*>(slots[shard].data() + kHeaderBytes.value);
      return std::hash<std::string_view>()({bytes, (of.layer_bytes * layers).value});
    };
    chunk.by_layer = ticket % 2 == 0;
    chunk.arrived = [&](uint32_t shard, uint32_t layers) {
      KVIST_CHECK(raw && (layers > arrived[shard].layers || layers == of.layers));
      arrived[shard] = {layers, hash(shard, layers)};
    };
    std::vector<Store::ChunkToRead> call;
    call.push_back(std::move(chunk));
    store->Read(std::move(call));
    const absl::Status status = WaitFor(ticket);
    for (uint32_t shard = 0; shard < options.shards; ++shard) {
      if (hash(shard, arrived[shard].layers) != arrived[shard].hash && arrived[shard].layers > 0)
        return absl::InternalError("what had arrived has changed");
      if (status.ok() && raw && arrived[shard].layers != of.layers)
        return absl::InternalError("not all was said to have arrived");
    }
    if (!status.ok()) return status;
    for (uint32_t shard = 0; shard < options.shards; ++shard) {
      AlignedBytes wanted(kUnit * of.units());
      // Of what a codec has made only the unit is known in which it ends.
      const uint64_t known = raw ? of.payload().value : (kUnit * (of.units() - 2)).value;
      // After a restart nobody knows which version it was: any that was written will do.
      bool same = false;
      for (uint64_t v = version; v <= (version == 0 ? versions_max : version) && !same; ++v) {
        FillPayload(wanted.data(), Seed(space, n, v, shard), of.payload().value);
        same = std::memcmp(wanted.data() + kHeaderBytes.value, slots[shard].data() + kHeaderBytes.value, known) == 0;
      }
      if (!same) return absl::InternalError("wrong bytes");
    }
    return absl::OkStatus();
  }
  void FreeNow(uint32_t space, uint64_t n) {
    Chunk gone = Forget(space, n);
    store->Free(IdOf(space, n), gone.shape.units(), std::move(gone.places));
  }
  void LeaveNow(uint32_t space, uint64_t n) {
    Chunk gone = Forget(space, n);
    store->Leave(IdOf(space, n), gone.shape.units(), std::move(gone.places));
  }
  Chunk Forget(uint32_t space, uint64_t n) {
    const absl::MutexLock lock(&mutex);
    auto node = chunks.extract({space, n});
    KVIST_CHECK(!node.empty());
    return std::move(node.mapped());
  }
  // As the core does it: what is cleared is known no more from then on, so nothing of it is written again behind the clear.
  absl::Status ClearNow(std::optional<uint32_t> space) {
    std::optional<absl::Status> result;
    std::vector<std::pair<std::pair<uint32_t, uint64_t>, Chunk>> gone;
    {
      const absl::MutexLock in_order(&order);
      {
        const absl::MutexLock lock(&mutex);
        for (auto it = chunks.begin(); it != chunks.end();) {
          const bool goes = !space || it->first.first == *space;
          if (goes) gone.emplace_back(it->first, std::move(it->second));
          it = goes ? chunks.erase(it) : std::next(it);
        }
        for (auto& [ticket, of] : in_flight) of.cleared |= !space || of.id.space == *space;
      }
      store->Clear(space, [&](absl::Status status) {
        const absl::MutexLock lock(&mutex);
        result = std::move(status);
        changed.SignalAll();
      });
    }
    for (auto& [name, chunk] : gone)
      store->Free(IdOf(name.first, name.second), chunk.shape.units(), std::move(chunk.places));
    const absl::MutexLock lock(&mutex);
    while (!result.has_value()) Wait();
    return *result;
  }
  std::vector<PinRow> Pins() {
    const absl::MutexLock lock(&mutex);
    return pins;
  }
  std::vector<UsesNote> Uses() {
    const absl::MutexLock lock(&mutex);
    return uses;
  }
  const Recovery& StartNow() {
    store->Start();
    return AwaitRecovered();
  }
  const Recovery& AwaitRecovered() {
    const absl::MutexLock lock(&mutex);
    while (!recovery.has_value()) Wait();
    return *recovery;
  }
  size_t count() {
    const absl::MutexLock lock(&mutex);
    return chunks.size();
  }
  std::map<std::pair<uint32_t, uint64_t>, Chunk> All() {
    const absl::MutexLock lock(&mutex);
    return chunks;
  }
  bool writable() {
    const absl::MutexLock lock(&mutex);
    return can_write.value_or(false);
  }

  void Written(Ticket ticket, absl::Status status, std::vector<Place> places) override {
    std::vector<Place> old;
    ShardShape old_shape;
    ChunkId id;
    bool frees = false, dropped = false, cleared = false;
    {
      const absl::MutexLock lock(&mutex);
      const auto it = in_flight.find(ticket);
      KVIST_CHECK(it != in_flight.end());
      id = it->second.id;
      cleared = it->second.cleared;
      old_shape = it->second.shape;
      if (cleared) {
        old = std::move(places);
      } else if (status.ok()) {
        KVIST_CHECK(places.size() == options.shards);
        Chunk& chunk = chunks[{id.space, NumberOf(id)}];
        old = std::exchange(chunk.places, std::move(places));
        old_shape = std::exchange(chunk.shape, it->second.shape);
        chunk.version = it->second.version;
        frees = !old.empty();
      } else if (const auto had = chunks.find({id.space, NumberOf(id)});
                 absl::IsResourceExhausted(status) && it->second.version > 0 && had != chunks.end()) {
        // It was wanted back, and there is no room to write it again.
        old = std::move(had->second.places);
        old_shape = had->second.shape;
        chunks.erase(had);
        if (on_freed) on_freed(id);
        dropped = true;
      }
      in_flight.erase(it);
      if (on_written && status.ok() && !cleared) on_written(id);
      results[ticket] = std::move(status);
      changed.SignalAll();
    }
    if (cleared && !old.empty()) return for_callbacks->Free(id, old_shape.units(), std::move(old));
    if (dropped) for_callbacks->Free(id, old_shape.units(), std::move(old));
    if (frees) for_callbacks->Free(id, old_shape.units(), std::move(old), /*replaced=*/true);
  }
  void Read(Ticket ticket, absl::Status status) override {
    const absl::MutexLock lock(&mutex);
    results[ticket] = std::move(status);
    changed.SignalAll();
  }
  void Writable(bool now, const std::string& why) override {
    const absl::MutexLock lock(&mutex);
    can_write = now;
    why_not = why;
  }
  bool Found(std::vector<FoundSpace> spaces, std::vector<FoundChunk> found) override {
    const absl::MutexLock lock(&mutex);
    for (FoundSpace& space : spaces) found_spaces[space.number] = std::move(space);
    for (FoundChunk& chunk : found) {
      ShardShape found_as = options.shape;
      found_as.codec = chunk.codec;
      if (chunk.codec != Codec::kRaw) found_as.encoded = kUnit * (chunk.units - 1);
      KVIST_CHECK(found_spaces.contains(chunk.id.space) && chunk.units == found_as.units());
      KVIST_CHECK(chunk.hints == 0 || chunk.hints == static_cast<uint16_t>(NumberOf(chunk.id)));
      const std::pair name{chunk.id.space, NumberOf(chunk.id)};
      const bool fresh = chunks.emplace(name, Chunk{0, std::move(chunk.places), found_as}).second;
      KVIST_CHECK(fresh);
      found_at_start.insert(name);
    }
    return true;
  }
  void FoundPins(std::vector<PinRow> found, bool) override {
    const absl::MutexLock lock(&mutex);
    KVIST_CHECK(!recovery.has_value() && pins.empty());
    pins = std::move(found);
  }
  void FoundUses(std::vector<UsesNote> found) override {
    const absl::MutexLock lock(&mutex);
    KVIST_CHECK(!recovery.has_value() && uses.empty());
    uses = std::move(found);
  }
  void Recovered(const Recovery& r) override {
    const absl::MutexLock lock(&mutex);
    KVIST_CHECK(!recovery.has_value());
    recovery = r;
    changed.SignalAll();
  }
  void WantsBack(std::vector<PlaceWanted> records) override {
    if (!options.gives_back) return;
    std::vector<std::pair<std::pair<uint32_t, uint64_t>, Chunk>> freed;
    std::vector<std::pair<uint32_t, uint64_t>> again;
    const absl::MutexLock in_order(&order);
    {
      const absl::MutexLock lock(&mutex);
      ++wanted_back;
      for (size_t i = 0; i < records.size(); ++i) {
        const PlaceWanted& record = records[i];
        const std::pair name{record.id.space, NumberOf(record.id)};
        const auto it = chunks.find(name);
        if (it == chunks.end() || it->second.places[record.shard] != record.place) continue;
        KVIST_CHECK(record.units == it->second.shape.units());
        if (options.keeps_newest && i * 4 > records.size() * 3) {
          again.push_back(name);
          continue;
        }
        if (on_freed) on_freed(record.id);
        freed.emplace_back(name, std::move(it->second));
        chunks.erase(it);
      }
    }
    for (auto& [name, chunk] : freed)
      for_callbacks->Free(IdOf(name.first, name.second), chunk.shape.units(), std::move(chunk.places));
    for (const auto& [space, n] : again) Begin(space, n, 1);
  }
  void Damaged(std::vector<PlaceWanted> records) override {
    const absl::MutexLock lock(&mutex);
    for (const PlaceWanted& record : records) damaged.insert({record.id.space, NumberOf(record.id)});
    changed.SignalAll();
  }
  void GivenUp(std::vector<PlaceWanted> records) override { WantsBack(std::move(records)); }
  static uint64_t Seed(uint32_t space, uint64_t n, uint64_t version, uint32_t shard) {
    return n * 1000003 + space * 101 + version * 31 + shard;
  }

  struct InFlight {
    ChunkId id;
    uint64_t version = 0;
    std::vector<AlignedBytes> slots;
    bool cleared = false;
    ShardShape shape;
  };
  const Options options;
  ShardShape shape = options.shape;
  uint64_t versions_max = 1;
  std::function<void(const ChunkId&)> on_written, on_freed;  // under the mutex
  Store* for_callbacks = nullptr;                            // while it is closed, too
  void Wait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    KVIST_CHECK(!changed.WaitWithTimeout(&mutex, kLong));
  }                   // a signal comes sooner, unless it hangs
  absl::Mutex order;  // of a clear and of what is written again; before `mutex`
  absl::Mutex mutex;
  absl::CondVar changed;
  uint64_t next_ticket = 0;
  std::map<uint64_t, InFlight> in_flight;
  std::map<uint64_t, absl::Status> results;
  std::map<std::pair<uint32_t, uint64_t>, Chunk> chunks;
  std::map<uint32_t, FoundSpace> found_spaces;
  std::set<std::pair<uint32_t, uint64_t>> found_at_start;  // stays, whatever is given back later
  uint64_t wanted_back = 0;
  std::set<std::pair<uint32_t, uint64_t>> damaged;
  std::optional<Recovery> recovery;
  std::vector<PinRow> pins ABSL_GUARDED_BY(mutex);    // that were found
  std::vector<UsesNote> uses ABSL_GUARDED_BY(mutex);  //
  std::optional<bool> can_write;
  std::string why_not;
  std::unique_ptr<Store> store;  // last: its threads call this
};

}  // namespace kvist::ssd::test

#endif  // KVIST_TESTS_UNIT_SSD_STORE_WORLD_H_
