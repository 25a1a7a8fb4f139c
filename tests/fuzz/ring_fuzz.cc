// What a client writes into its session's memory: entries with arguments -> EngineSession::Drain -> a real core, whose effects a copy
// engine that copies nothing carries out.
//
// Input: a program of steps, each one byte (its low three bits say which) and what that step reads; missing bytes are zero.
//   0, 1  a well-formed entry of small numbers: opcode, cell, keys (from a palette of which half is stored), pages, handle, layers
//   2     an entry of 64 bytes as they stand
//   3     bytes into the arena
//   4     the daemon looks at its rings
//   5     time passes
//   6     a copy ends: well, or cancelled, or because the file has shrunk
//   7     everything is cleared, or a session hangs up and another one comes
// Bit 3 chooses the session: a scheduler or a worker. Bit 4 has copies end at once.
// Holds: the core's invariants after every input; each copy stays within the worker's pages and layers and has its slots; when all
// sessions have gone no operation, lease, allocation or filling chunk is left.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/core.h"
#include "daemon/session/engine_session.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/pool/slot_allocator.h"

namespace {

namespace core = kvist::core;
namespace session = kvist::session;
namespace shm = kvist::shm;
using kvist::ChunkKey;
using kvist::SessionId;
using kvist::UniqueFd;

constexpr uint32_t kPages = 32, kLayers = 3, kPagesPerChunk = 2, kGroups = 3;
constexpr kvist::Bytes kSlotBytes = kvist::KiB(8);
constexpr uint32_t kPalette = 16, kStored = 8;  // keys; the first ones are in the pool at the start
constexpr uint32_t kStepsMax = 200;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(data, size) {}
  bool empty() const { return rest_.empty(); }
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const uint8_t byte = rest_.front();
    rest_ = rest_.subspan(1);
    return byte;
  }
  uint32_t Number() { return Byte() | uint32_t{Byte()} << 8; }
  void Copy(void* out, size_t size) {
    const size_t n = std::min(size, rest_.size());
    if (n > 0) std::memcpy(out, rest_.data(), n);
    rest_ = rest_.subspan(n);
  }

 private:
  std::span<const uint8_t> rest_;
};

ChunkKey KeyOf(uint32_t n) {
  ChunkKey key;
  key.bytes.fill(static_cast<uint8_t>(n + 1));
  return key;
}

bool HasKeys(shm::Opcode opcode) {
  switch (opcode) {
    case shm::Opcode::kLookup:
    case shm::Opcode::kStore:
    case shm::Opcode::kPin:
    case shm::Opcode::kUnpin:
    case shm::Opcode::kHint:
    case shm::Opcode::kWhere: return true;
    default: return false;
  }
}

bool IsSwap(shm::Opcode opcode) { return opcode == shm::Opcode::kSwapOut || opcode == shm::Opcode::kSwapIn; }
bool HasPages(shm::Opcode opcode) { return opcode == shm::Opcode::kLoad || opcode == shm::Opcode::kStore || IsSwap(opcode); }

core::SpaceSpec Space() {
  core::SpaceSpec space;
  space.digest.bytes[0] = 1;
  space.tenant = "t";
  space.model = "m";
  for (const kvist::ReuseRule reuse : {kvist::ReuseRule{}, {kvist::GroupKind::kWindow, 2}, {kvist::GroupKind::kState}})
    space.groups.push_back({.reuse = reuse, .slot_bytes = {kSlotBytes}});
  return space;
}

std::shared_ptr<const kvist::cuda::KvMemory> Memory() {
  static const std::shared_ptr<const kvist::cuda::KvMemory> memory = [] {
    auto made = std::make_shared<kvist::cuda::KvMemory>();
    kvist::cuda::KvLayout layout;
    layout.layers.resize(kLayers);
    layout.pages = kPages;
    layout.page_stride = kvist::Bytes{64};
    layout.segment_offsets = {kvist::Bytes{0}};
    layout.segment_bytes = kvist::Bytes{64};
    layout.pages_per_chunk = kPagesPerChunk;
    made->layouts.assign(kGroups, layout);
    made->layouts[2].pages_per_chunk = 1;
    return made;
  }();
  return memory;
}

// A session as daemon and client see it.
struct Session {
  std::unique_ptr<session::EngineSession> daemon;
  shm::SessionMemory memory;  // the client's mapping
  uint64_t tail = 0;          // entries written
  bool served = false;
};

class World {
 public:
  explicit World(Input* input) : input_(*input) {
    Open(0);
    Open(1);
    std::vector<ChunkKey> keys;
    for (uint32_t i = 0; i < kStored; ++i) keys.push_back(KeyOf(i));
    core_.Handle(core::StoreAsked{sessions_[1].daemon->identity().id, {}, {}, std::nullopt, keys}, &effects_);
    const auto started = std::get<core::CopyStarted>(effects_.at(0));
    effects_.clear();
    core_.Handle(core::CopyFinished{started.op, absl::OkStatus()}, &effects_);
    effects_.clear();
    core_.CheckInvariants();
  }

  void Run() {
    for (uint32_t i = 0; i < kStepsMax && !input_.empty(); ++i) {
      const uint8_t step = input_.Byte();
      at_once_ = (step & 16) != 0;
      const size_t which = (step >> 3) & 1;
      Session& of = sessions_[which];
      switch (step & 7) {
        case 0:
        case 1: WriteGoodEntry(&of); break;
        case 2: WriteAnyEntry(&of); break;
        case 3: WriteArena(&of); break;
        case 4: Drain(); break;
        case 5: PassTime(absl::Milliseconds(input_.Number())); break;
        case 6: EndCopy(); break;
        case 7: ClearOrHangUp(which); break;
      }
    }
    Drain();
    core_.CheckInvariants();
  }

  void Finish() {
    for (Session& of : sessions_) Close(&of);
    while (!copies_.empty()) EndCopy();
    while (core_.has_work()) PassTime(absl::Milliseconds(1));
    core_.CheckInvariants();
    const core::CoreStatus status = core_.status();
    KVIST_CHECK(status.sessions == 0 && status.ops == 0 && status.leases == 0);
    KVIST_CHECK(status.allocations == 0 && status.private_bytes.value == 0);
    PassTime(absl::Hours(1));
    while (core_.has_work()) PassTime(absl::Milliseconds(1));
    KVIST_CHECK(core_.status().filling == 0);
    core_.CheckInvariants();
  }

 private:
  struct InFlight {
    core::CopyStarted copy;
    bool cancelled = false;
  };

  void Open(size_t which) {
    auto created = *shm::SessionMemory::Create();
    Session& of = sessions_[which];
    of.memory = *shm::SessionMemory::Map(created.fd.get());
    of.tail = 0;
    of.served = false;
    session::Registration registration;
    registration.instance = "fuzz";
    registration.role = which == 0 ? core::Role::kScheduler : core::Role::kWorker;
    registration.space = Space();
    if (which == 1) registration.memory = Memory();
    const SessionId id{next_session_++};
    core_.Handle(core::SessionOpened{id, registration.instance, registration.role, {}, registration.space}, &effects_);
    of.daemon = std::make_unique<session::EngineSession>(session::EngineSession::Identity{id, 1, 1, now_},
                                                         std::move(registration), std::move(created.memory), UniqueFd());
    CarryOut();
  }

  void Close(Session* of) {
    if (!of->served) return;
    of->served = false;
    core_.Handle(core::SessionClosed{of->daemon->identity().id}, &effects_);
    CarryOut();
  }

  void Submit(Session* of, shm::Entry entry) {
    shm::Entry* place = &of->memory.ring()[of->tail % shm::kEntries];
    entry.turn = static_cast<uint32_t>(++of->tail);
    std::memcpy(place, &entry, sizeof entry);
  }

  void WriteGoodEntry(Session* of) {
    shm::Entry entry{};
    entry.opcode = static_cast<shm::Opcode>(input_.Byte() % (static_cast<uint32_t>(shm::Opcode::kWhere) + 1));
    entry.cell = input_.Byte() % 12;
    entry.sequence = input_.Byte();
    entry.flags = input_.Byte() % 8;  // one of them means nothing
    entry.deadline_nanos = kvist::ToMonotonicNanos(now_) + (input_.Byte() % 8 == 7 ? -1 : 1'000'000'000);
    entry.arena = uint64_t{input_.Byte()} * 64;
    const uint32_t keys = HasKeys(entry.opcode) ? input_.Byte() % 20 : 0;
    entry.keys = keys;
    entry.chunks = input_.Byte() % 10;
    entry.first_chunk = input_.Byte() % 10;
    const uint8_t handle = input_.Byte();
    entry.lease = handle < handles_.size() ? handles_[handle] : handle;
    if (entry.opcode == shm::Opcode::kLookup) {
      entry.lease_nanos = int64_t{input_.Byte()} * 100'000'000;
    } else if (entry.opcode == shm::Opcode::kHint) {
      entry.hint = {static_cast<uint8_t>(input_.Byte() % 3), static_cast<uint8_t>(input_.Byte() % 5),
                    static_cast<uint8_t>(input_.Byte() % 6)};
    } else if (entry.opcode == shm::Opcode::kPrefill) {
      entry.took_nanos = int64_t{input_.Byte()} * 1'000'000;
    } else {
      entry.layer = {uint32_t{input_.Byte()} % 4, uint32_t{input_.Byte()} % 5};
      entry.group = static_cast<uint16_t>(input_.Byte() % (kGroups + 1));
    }
    if (HasPages(entry.opcode)) {
      const uint32_t chunks = entry.opcode == shm::Opcode::kStore
                                  ? keys - ((entry.flags & shm::kHasParent) != 0 && keys > 0 ? 1 : 0)
                                  : entry.chunks;
      entry.pages = chunks * Memory()->layouts[entry.group % kGroups].pages_per_chunk;
    }
    const uint8_t first = input_.Byte();
    std::byte* out = of->memory.arena() + entry.arena;
    for (uint32_t i = 0; i < keys; ++i) {
      const ChunkKey key = KeyOf((first + i) % kPalette);
      std::memcpy(out + i * sizeof key, &key, sizeof key);
    }
    for (uint32_t i = 0; i < entry.pages; ++i) {
      // The last two say what not every request may: a page that isn't there, and one that isn't the engine's.
      const uint32_t page = first == 254 && i == 0 ? kvist::kNoPage.value : (first + i) % (kPages + (first == 255));
      std::memcpy(out + keys * sizeof(ChunkKey) + i * sizeof page, &page, sizeof page);
    }
    Submit(of, entry);
  }

  void WriteAnyEntry(Session* of) {
    shm::Entry entry{};
    input_.Copy(&entry, sizeof entry);
    Submit(of, entry);
  }

  void WriteArena(Session* of) {
    const uint64_t at = uint64_t{input_.Number()} * 64;
    const size_t size = input_.Byte();
    input_.Copy(of->memory.arena() + at % (shm::kArenaBytes.value - 256), size);
  }

  void Drain() {
    for (size_t which = 0; which < sessions_.size(); ++which) {
      while (sessions_[which].served) {
        const absl::StatusOr<uint32_t> drained =
            sessions_[which].daemon->Drain({}, kvist::ToMonotonicNanos(now_), &core_, &effects_);
        CarryOut();
        if (!drained.ok()) {
          KVIST_CHECK(!drained.status().message().empty());
          Close(&sessions_[which]);
        } else if (*drained == 0) {
          break;
        }
      }
    }
  }

  void PassTime(absl::Duration duration) {
    now_ += duration;
    core_.Handle(core::Tick{now_}, &effects_);
    CarryOut();
  }

  void EndCopy() {
    if (copies_.empty()) return;
    InFlight copy = std::move(copies_.front());
    copies_.pop_front();
    absl::Status status;
    switch (copy.cancelled ? 1 : input_.Byte() % 4) {
      case 1: status = absl::CancelledError("cancelled"); break;
      case 2: status = absl::OutOfRangeError("the file has shrunk"); break;
      default: break;
    }
    core_.Handle(core::CopyFinished{copy.copy.op, status}, &effects_);
    CarryOut();
  }

  void ClearOrHangUp(size_t which) {
    const uint8_t how = input_.Byte();
    if (how % 2 == 0) {
      const bool all = how % 4 == 0;
      if (core_.jobs().full()) return;
      core_.Handle(core::ClearAsked{core::JobId{next_job_++}, all ? std::nullopt : std::optional(kvist::SpaceId{0})},
                   &effects_);
      CarryOut();
      return;
    }
    Close(&sessions_[which]);
    if (sessions_[which].daemon == nullptr || !HasCopies(sessions_[which])) Open(which);
  }

  bool HasCopies(const Session& of) const {
    return std::any_of(copies_.begin(), copies_.end(),
                       [&](const InFlight& c) { return c.copy.session == of.daemon->identity().id; });
  }

  // Whether the operation is a swap, by what stands in the ring.
  static bool AskedToSwap(const Session& of, core::RequestTag tag) {
    const std::span<const shm::Entry> entries(of.memory.ring(), std::min<uint64_t>(of.tail, shm::kEntries));
    return std::ranges::any_of(entries, [tag](const shm::Entry& entry) {
      return IsSwap(entry.opcode) && (uint64_t{entry.cell} << 32 | entry.sequence) == tag.value;
    });
  }

  Session* Find(SessionId id) {
    for (Session& of : sessions_) {
      if (of.daemon != nullptr && of.daemon->identity().id == id) return &of;
    }
    return nullptr;
  }

  void CarryOut() {
    while (!effects_.empty()) {
      core::Effects effects;
      effects.swap(effects_);
      for (core::Effect& effect : effects) std::visit([this](auto& e) { Carry(e); }, effect);
      if (std::exchange(slots_copied_, false)) core_.Handle(core::SlotsCopied{}, &effects_);
      if (at_once_) {
        while (!copies_.empty()) {
          const InFlight copy = std::move(copies_.front());
          copies_.pop_front();
          core_.Handle(
              core::CopyFinished{copy.copy.op, copy.cancelled ? absl::CancelledError("cancelled") : absl::OkStatus()},
              &effects_);
        }
      }
    }
  }

  void Carry(core::SessionAccepted& effect) {
    for (Session& of : sessions_) {
      if (of.daemon != nullptr && of.daemon->identity().id == effect.session) of.served = true;
    }
  }
  void Carry(core::SessionRefused& effect) { KVIST_CHECK(!effect.why.ok()); }
  void Carry(core::SessionDrained& effect) {
    KVIST_CHECK(
        std::none_of(copies_.begin(), copies_.end(), [&](const InFlight& c) { return c.copy.session == effect.session; }));
  }
  void Carry(core::LookupAnswered& effect) {
    Find(effect.session)->daemon->Answer(effect);
    if (effect.lease) handles_.push_back(effect.lease.Pack());
  }
  void Carry(core::CopyStarted& effect) {
    KVIST_CHECK(!effect.slots.empty());
    static std::byte somewhere;
    kvist::cuda::Copy copy =
        Find(effect.session)->daemon->Begin(effect, std::vector<std::byte*>(effect.slots.size(), &somewhere));
    KVIST_CHECK(copy.memory != nullptr && copy.page_table.size() == copy.slots.size() * copy.layout().pages_per_chunk);
    const bool whole = copy.direction == kvist::cuda::Direction::kStore && !AskedToSwap(*Find(effect.session), effect.tag);
    for (const kvist::PageId page : copy.page_table) KVIST_CHECK(page.value < kPages || (page == kvist::kNoPage && !whole));
    KVIST_CHECK(copy.layer_count > 0 && copy.first_layer + copy.layer_count <= kLayers);
    copy.progress->LayersDone(copy.layer_count);
    copies_.push_back({std::move(effect)});
  }
  void Carry(core::CopyCancelled& effect) {
    for (InFlight& copy : copies_) copy.cancelled |= copy.copy.op == effect.op;
  }
  void Carry(core::PinAnswered&) {}  // no operator asks here
  void Carry(core::OpEnded& effect) { Find(effect.session)->daemon->Answer(effect); }
  void Carry(core::Answered& effect) {
    Find(effect.session)->daemon->Answer(effect);
    if (effect.allocation) handles_.push_back(effect.allocation.Pack());
  }
  void Carry(core::JobEnded&) {}
  void Carry(core::CorruptionFound&) {}
  // Nothing lies in these slots: nobody has to copy it.
  void Carry(core::SlotsCopyStarted&) { slots_copied_ = true; }
  // There is no disk here.
  void Carry(core::CopyWaits&) { KVIST_CHECK(false); }
  void Carry(core::WriteStarted&) { KVIST_CHECK(false); }
  void Carry(core::ReadStarted&) { KVIST_CHECK(false); }
  void Carry(core::PlacesFreed&) { KVIST_CHECK(false); }
  void Carry(core::PinsNoted&) { KVIST_CHECK(false); }
  void Carry(core::UsesNoted&) { KVIST_CHECK(false); }
  void Carry(core::PinLost&) { KVIST_CHECK(false); }
  void Carry(core::SpaceCleared&) { KVIST_CHECK(false); }
  void Carry(core::RemoteAsked&) { KVIST_CHECK(false); }
  void Carry(core::RecodeStarted&) { KVIST_CHECK(false); }
  void Carry(core::RecodeStopped&) { KVIST_CHECK(false); }
  void Carry(core::ChunksChanged&) { KVIST_CHECK(false); }  // nobody watches here
  void Carry(core::RemoteForgotten&) { KVIST_CHECK(false); }
  void Carry(core::ChunksHidden&) { KVIST_CHECK(false); }
  void Carry(core::Flushed& effect) { Find(*effect.session)->daemon->Answer(effect); }

  Input& input_;
  kvist::pool::SlotAllocator slots_ =
      *kvist::pool::SlotAllocator::Create({.regions = {kvist::KiB(256)}, .slab_bytes = kvist::KiB(64)});
  core::Core core_{{}, &slots_};
  core::Effects effects_;
  absl::Time now_ = kvist::FromMonotonicNanos(1'000'000'000);
  std::array<Session, 2> sessions_;
  std::deque<InFlight> copies_;
  std::vector<uint64_t> handles_;  // of leases and allocations, as they were given out
  uint64_t next_session_ = 1;
  uint64_t next_job_ = 1;
  bool at_once_ = false;
  bool slots_copied_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  World world(&input);
  world.Run();
  world.Finish();
  return 0;
}
