#include "daemon/session/engine_session.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/shm/futex.h"
#include "storage/base/status.h"

namespace kvist::session {
namespace {

static_assert(shm::kKeysMax == core::Core::kKeysMax, "the session refuses what the core can't take");
static_assert(core::TierBit(core::Tier::kDram) == 1 && core::TierBit(core::Tier::kSsd) == 2 &&
                  core::TierBit(core::Tier::kRemote) == 4,
              "a where's answer has the bits of kvist_tier");
static_assert(shm::kCells <= core::Sessions::kOpsPerSession, "a cell is an operation in flight");

// So many take about as long as one of the core's work does: a key is copied in 1 ns, a page copied and checked in 3 (measured: AMD
// EPYC).
constexpr uint32_t kKeysPerWork = 32;
constexpr uint32_t kPagesPerWork = 16;

// Page ids that kvistd keeps for a session's operations until they end: 8 MiB. Four of the largest requests, or 256 of 128,000 tokens each in pages
// of 16; in pages of one token 16, and more are refused until some have ended: a store is then left out, a load computed.
constexpr uint64_t kPagesInFlight = 4 * uint64_t{shm::kPagesMax};

// A stream may keep a copy waiting for so long at most, whatever the deadline.
constexpr int64_t kReadyWithinNanos = 60'000'000'000;

core::RequestTag Tag(uint32_t cell, uint32_t sequence) { return {uint64_t{cell} << 32 | sequence}; }
uint32_t CellOf(core::RequestTag tag) { return static_cast<uint32_t>(tag.value >> 32); }
uint32_t SequenceOf(core::RequestTag tag) { return static_cast<uint32_t>(tag.value); }

// Of requests that get an answer of their own. ReadArguments refuses opcodes that don't exist as lookups' ones, which they are closest to.
size_t HookOf(shm::Opcode opcode) {
  const Hook hook = [opcode] {
    switch (opcode) {
      case shm::Opcode::kLoad: return Hook::kLoad;
      case shm::Opcode::kStore: return Hook::kStore;
      case shm::Opcode::kSwapOut: return Hook::kSwapOut;
      case shm::Opcode::kSwapIn: return Hook::kSwapIn;
      case shm::Opcode::kPin: return Hook::kPin;
      case shm::Opcode::kUnpin: return Hook::kUnpin;
      case shm::Opcode::kAllocate: return Hook::kAllocate;
      case shm::Opcode::kFlush: return Hook::kFlush;
      case shm::Opcode::kWhere: return Hook::kWhere;
      default: return Hook::kLookup;
    }
  }();
  return static_cast<size_t>(hook);
}

absl::Duration LeaseOf(int64_t asked_nanos) {
  const absl::Duration asked = absl::Nanoseconds(asked_nanos);
  return asked > absl::ZeroDuration() ? asked + absl::Nanoseconds(EngineSession::kCoreLateNanos) : asked;
}

bool IsSwap(shm::Opcode opcode) { return opcode == shm::Opcode::kSwapOut || opcode == shm::Opcode::kSwapIn; }

// Copies arguments out of shared memory, where they may lie at any address. The fence keeps the compiler from reading them there
// again, as it may with memory that nobody else writes: what is checked is the copy, and so must be what is used.
template <class T>
void CopyOut(const std::byte* from, uint32_t count, std::vector<T>* out) {
  out->resize(count);
  if (count > 0) std::memcpy(out->data(), from, count * sizeof(T));
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void Publish(shm::Cell* cell, uint64_t progress, bool to_streams) {
  if (to_streams) shm::Raise(&cell->stream_progress, progress);
  // seq_cst: either the waiter, who counted itself before it looked, sees this progress, or this sees the waiter.
  cell->progress.store(progress, std::memory_order_seq_cst);
  if (cell->waiters.load(std::memory_order_seq_cst) != 0) {
    shm::FutexWakeAll(reinterpret_cast<std::atomic<uint32_t>*>(&cell->progress));  // its low half
  }
}

// Raises an operation's layer count on the board, straight from the copy engine's threads.
class BoardProgress : public cuda::LayerProgress {
 public:
  BoardProgress(std::shared_ptr<const shm::SessionMemory> memory, uint32_t cell, uint32_t sequence, bool to_streams)
      : memory_(std::move(memory)), cell_(cell), sequence_(sequence), to_streams_(to_streams) {}
  void LayersDone(uint32_t layers) override {
    Publish(memory_->cell(cell_), shm::PackProgress(sequence_, shm::Phase::kPending, layers), to_streams_);
  }

 private:
  std::shared_ptr<const shm::SessionMemory> memory_;
  const uint32_t cell_;
  const uint32_t sequence_;
  const bool to_streams_;
};

// What the engine's streams say on the board of the pages of an operation.
class BoardReady : public cuda::PagesReady {
 public:
  BoardReady(std::shared_ptr<const shm::SessionMemory> memory, uint32_t cell, uint32_t sequence)
      : memory_(std::move(memory)), cell_(cell), sequence_(sequence) {}
  bool LayersReady(uint32_t layers) const override {
    return shm::HasReached(memory_->cell(cell_)->ready.load(std::memory_order_acquire), shm::PackReady(sequence_, layers));
  }

 private:
  std::shared_ptr<const shm::SessionMemory> memory_;
  const uint32_t cell_;
  const uint32_t sequence_;
};

class BoardBusClaim : public cuda::BusClaim {
 public:
  explicit BoardBusClaim(std::shared_ptr<const shm::SessionMemory> memory) : memory_(std::move(memory)) {}
  int64_t UntilNanos() const override { return memory_->header()->bus_claimed_until_nanos.load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<const shm::SessionMemory> memory_;
};

}  // namespace

EngineSession::EngineSession(Identity identity, Registration registration, shm::SessionMemory memory, UniqueFd doorbell)
    : identity_(identity),
      registration_(std::move(registration)),
      memory_(std::make_shared<const shm::SessionMemory>(std::move(memory))),
      doorbell_(std::move(doorbell)),
      ring_(memory_.get()),
      bus_claim_(on_gpu() ? std::make_shared<const BoardBusClaim>(memory_) : nullptr),
      pending_(shm::kCells),
      opened_nanos_(MonotonicNanos()) {}

void EngineSession::Accepted(SpaceId space, Latencies* latencies) {
  space_ = space;
  latencies_ = latencies;
}

absl::StatusOr<uint32_t> EngineSession::Drain(Turn turn, int64_t now_nanos, core::Core* core, core::Effects* out) {
  const uint64_t start = core->work();
  uint64_t copied = 0;  // arguments, in what costs about as much of the core's work
  uint32_t drained = 0;
  for (; drained < turn.entries && core->work() - start + copied < turn.work; ++drained) {
    absl::Status status;
    if (hint_left_.empty()) {
      shm::Entry entry;
      if (!ring_.Next(&entry)) break;
      ++requests_;
      copied += entry.keys / kKeysPerWork + entry.pages / kPagesPerWork;
      status = HandleEntry(entry, now_nanos, core, out);
    }
    if (!hint_left_.empty()) Hint(core, out);
    if (hint_left_.empty()) ring_.Consumed();  // else the ring isn't empty, so nobody sleeps on the rest
    KVIST_RETURN_IF_ERROR(status);
  }
  return drained;
}

absl::Status EngineSession::HandleEntry(const shm::Entry& entry, int64_t now_nanos, core::Core* core, core::Effects* out) {
  switch (entry.opcode) {  // those without an answer
    case shm::Opcode::kRelease:
      core->Handle(core::ReleaseAsked{identity_.id, LeaseId::Unpack(entry.lease)}, out);
      return absl::OkStatus();
    case shm::Opcode::kFree:
      core->Handle(core::FreeAsked{identity_.id, AllocationId::Unpack(entry.lease)}, out);
      return absl::OkStatus();
    case shm::Opcode::kHint: return ReadHint(entry);
    case shm::Opcode::kPrefill: return ReadPrefill(entry, core, out);
    default: break;
  }
  if (entry.cell >= shm::kCells)
    return absl::InvalidArgumentError(absl::StrCat("an entry names cell ", entry.cell, " of ", shm::kCells));
  Pending& pending = pending_[entry.cell];
  if (entry.opcode == shm::Opcode::kCancel) {
    if (pending.busy && pending.sequence == entry.sequence) core->Handle(core::CancelAsked{pending.op}, out);
    return absl::OkStatus();
  }
  if (pending.busy)
    return absl::InvalidArgumentError(absl::StrCat("an entry names cell ", entry.cell, ", whose operation hasn't ended"));

  pending.taken_nanos = now_nanos;
  absl::Status status = ReadArguments(entry, &pending);
  if (status.ok() && entry.deadline_nanos < now_nanos) {
    status = absl::DeadlineExceededError("the deadline had passed when kvistd came to it");
  }
  if (!status.ok()) {
    ++traffic_.failed[HookOf(entry.opcode)];
    if (absl::IsDeadlineExceeded(status)) ++traffic_.late[HookOf(entry.opcode)];
    End(entry.cell, entry.sequence, status, 0, 0, 0, 0);
    return absl::OkStatus();
  }
  pending.opcode = entry.opcode;
  pending.keys = entry.keys;
  pending.busy = true;
  pending.page_count = entry.pages;
  pages_in_flight_ += entry.pages;
  ++ops_in_flight_;
  pending.sequence = entry.sequence;
  const auto ours = [&](const auto* effect) {
    return effect != nullptr && effect->session == identity_.id && effect->tag == Tag(entry.cell, entry.sequence);
  };
  const size_t before = out->size();
  Ask(entry, pending, core, out);
  // Known from now on, not only when the effect is carried out: a cancel may be the next entry.
  for (size_t i = before; i < out->size(); ++i) {
    if (const auto* started = std::get_if<core::CopyStarted>(&(*out)[i]); ours(started)) pending.op = started->op;
    if (const auto* waits = std::get_if<core::CopyWaits>(&(*out)[i]); ours(waits)) pending.op = waits->op;
  }
  return absl::OkStatus();
}

void EngineSession::Ask(const shm::Entry& entry, const Pending& pending, core::Core* core, core::Effects* out) {
  const core::RequestTag tag = Tag(entry.cell, entry.sequence);
  const GroupId group{entry.group};
  const std::span<const ChunkKey> keys = keys_;
  switch (entry.opcode) {
    case shm::Opcode::kLookup:
      return core->Handle(
          core::LookupAsked{identity_.id, tag, keys, LeaseOf(entry.lease_nanos), entry.first_chunk, registration_.by_layer},
          out);
    case shm::Opcode::kLoad:
      return core->Handle(
          core::LoadAsked{identity_.id, tag, LeaseId::Unpack(entry.lease), group, entry.first_chunk, entry.chunks}, out);
    case shm::Opcode::kStore:
      if ((entry.flags & shm::kHasParent) == 0)
        return core->Handle(core::StoreAsked{identity_.id, tag, group, std::nullopt, keys}, out);
      return core->Handle(core::StoreAsked{identity_.id, tag, group, keys.front(), keys.subspan(1)}, out);
    case shm::Opcode::kPin: return core->Handle(core::PinAsked{identity_.id, tag, keys}, out);
    case shm::Opcode::kUnpin: return core->Handle(core::UnpinAsked{identity_.id, tag, keys}, out);
    case shm::Opcode::kFlush: return core->Handle(core::FlushAsked{identity_.id, tag}, out);
    case shm::Opcode::kWhere: return AnswerWhere(entry, *core);
    case shm::Opcode::kAllocate: return core->Handle(core::AllocateAsked{identity_.id, tag, group, entry.chunks}, out);
    case shm::Opcode::kSwapOut:
    case shm::Opcode::kSwapIn:
      return core->Handle(
          core::SwapAsked{identity_.id, tag,
                          entry.opcode == shm::Opcode::kSwapOut ? core::Direction::kStore : core::Direction::kLoad,
                          AllocationId::Unpack(entry.lease), group, entry.first_chunk, entry.chunks, pending.first_layer,
                          pending.layers},
          out);
    default: KVIST_CHECK(false);  // ReadArguments knows all opcodes
  }
}

// A look that changes nothing and ends here.
void EngineSession::AnswerWhere(const shm::Entry& entry, const core::Core& core) {
  const size_t groups = core.spec(space_).groups.size();
  if (entry.group >= groups) {
    ++traffic_.failed[static_cast<size_t>(Hook::kWhere)];
    return End(entry.cell, entry.sequence,
               absl::InvalidArgumentError(absl::StrCat("cache group ", entry.group, " of ", groups)), 0, 0, 0, 0);
  }
  uint8_t tiers[shm::kWhereKeysMax];
  const uint32_t found = core.Where(space_, GroupId{entry.group}, keys_, tiers);
  std::memcpy(memory_->cell(entry.cell)->message, tiers, keys_.size());
  End(entry.cell, entry.sequence, absl::OkStatus(), found, 0, 0, 0);
  RecordLatency(pending_[entry.cell]);
}

absl::Status EngineSession::ReadHint(const shm::Entry& entry) {
  const std::byte* arguments =
      entry.keys > shm::kKeysMax ? nullptr : ring_.Arguments(entry.arena, uint64_t{entry.keys} * sizeof(ChunkKey));
  const shm::HintBytes& bytes = entry.hint;
  if (arguments == nullptr || bytes.session_ended > 1 ||
      bytes.expected_reuse > static_cast<uint8_t>(core::ExpectedReuse::kNever) || bytes.stop_reason > core::kStopReasonMax) {
    return absl::InvalidArgumentError("a hint that no connector sends: too many keys, or values that don't exist");
  }
  CopyOut(arguments, entry.keys, &keys_);
  hint_ = {bytes.session_ended != 0, static_cast<core::ExpectedReuse>(bytes.expected_reuse),
           static_cast<core::StopReason>(bytes.stop_reason)};
  hint_left_ = keys_;
  return absl::OkStatus();
}

absl::Status EngineSession::ReadPrefill(const shm::Entry& entry, core::Core* core, core::Effects* out) {
  if (entry.chunks == 0 || entry.took_nanos <= 0)
    return absl::InvalidArgumentError("a prefill that no connector reports: no tokens, or no time");
  const double chunk_tokens = registration_.chunk_tokens;
  core->Handle(core::PrefillReported{identity_.id, entry.first_chunk / chunk_tokens, entry.chunks / chunk_tokens,
                                     absl::Nanoseconds(entry.took_nanos)},
               out);
  return absl::OkStatus();
}

void EngineSession::Hint(core::Core* core, core::Effects* out) {
  const size_t count = std::min<size_t>(hint_left_.size(), core->HintKeysMax(identity_.id));
  core->Handle(core::HintAsked{identity_.id, hint_left_.first(count), hint_}, out);
  hint_left_ = hint_left_.subspan(count);
}

absl::Status EngineSession::ReadArguments(const shm::Entry& entry, Pending* pending) {
  bool has_keys = false, has_pages = false;
  switch (entry.opcode) {
    case shm::Opcode::kLookup:
    case shm::Opcode::kPin:
    case shm::Opcode::kUnpin:
    case shm::Opcode::kWhere: has_keys = true; break;
    case shm::Opcode::kLoad:
    case shm::Opcode::kSwapOut:
    case shm::Opcode::kSwapIn: has_pages = true; break;
    case shm::Opcode::kStore: has_keys = has_pages = true; break;
    case shm::Opcode::kAllocate:
    case shm::Opcode::kFlush: break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("no such request: opcode ", static_cast<uint32_t>(entry.opcode)));
  }
  const bool store = entry.opcode == shm::Opcode::kStore;
  const uint64_t parent = store && (entry.flags & shm::kHasParent) != 0 ? 1 : 0;
  const uint32_t chunks_max = entry.opcode == shm::Opcode::kWhere ? shm::kWhereKeysMax : shm::kKeysMax;
  if (entry.keys > (has_keys ? chunks_max + parent : 0) || entry.pages > (has_pages ? shm::kPagesMax : 0) ||
      (store && entry.keys < parent + 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request of ", entry.keys, " keys and ", entry.pages, " pages; allowed are ", chunks_max, " chunks"));
  }
  const std::byte* arguments =
      ring_.Arguments(entry.arena, uint64_t{entry.keys} * sizeof(ChunkKey) + uint64_t{entry.pages} * sizeof(PageId));
  if (arguments == nullptr) return absl::InvalidArgumentError("a request's arguments lie outside the arena");
  CopyOut(arguments, entry.keys, &keys_);
  return has_pages ? ReadPages(entry, store ? entry.keys - parent : entry.chunks, arguments + entry.keys * sizeof(ChunkKey),
                               pending)
                   : absl::OkStatus();
}

absl::Status EngineSession::ReadPages(const shm::Entry& entry, uint64_t chunks, const std::byte* pages, Pending* pending) {
  const bool store = entry.opcode == shm::Opcode::kStore;
  const cuda::KvMemory* memory = registration_.memory.get();
  if (memory == nullptr)
    return absl::FailedPreconditionError("a scheduler session has no KV memory: load, store and swap from a worker session");
  if (entry.group >= memory->layouts.size())
    return absl::InvalidArgumentError(absl::StrCat("cache group ", entry.group, " of ", memory->layouts.size()));
  const cuda::KvLayout& layout = memory->layouts[entry.group];
  pending->group = GroupId{entry.group};
  const bool after_stream = (entry.flags & shm::kAfterStream) != 0;
  // The client gives it up by itself when it is late; one that doesn't must not keep slots for it.
  pending->ready_by_nanos = after_stream ? std::min(entry.deadline_nanos, pending->taken_nanos + kReadyWithinNanos) : 0;
  if (after_stream && memory->gpu == nullptr)
    return absl::InvalidArgumentError("a copy is to wait for a stream, but the session's KV memory is no GPU's");
  if (chunks > shm::kKeysMax || entry.pages != chunks * layout.pages_per_chunk) {
    return absl::InvalidArgumentError(
        absl::StrCat(entry.pages, " pages for ", chunks, " chunks of ", layout.pages_per_chunk, " pages"));
  }
  const auto layers = static_cast<uint32_t>(layout.layers.size());
  pending->first_layer = store ? 0 : entry.layer.first_layer;
  if (pending->first_layer >= layers)
    return absl::InvalidArgumentError(absl::StrCat("first layer ", pending->first_layer, " of ", layers));
  pending->layers = !store && entry.layer.layers != 0 ? entry.layer.layers : layers - pending->first_layer;
  if (pending->layers > layers - pending->first_layer) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers [", pending->first_layer, ", +", pending->layers, ") of ", layers));
  }
  if (entry.pages > kPagesInFlight - pages_in_flight_) {
    return absl::ResourceExhaustedError(absl::StrCat("the session's operations in flight name ", pages_in_flight_,
                                                     " pages, with this one ", entry.pages, " more, and ", kPagesInFlight,
                                                     " are allowed: wait for some to end"));
  }
  CopyOut(pages, entry.pages, &pending->pages);
  for (const PageId page : pending->pages) {
    if (page.value >= layout.pages && (store || page != kNoPage))
      return absl::InvalidArgumentError(absl::StrCat("page ", page.value, " of ", layout.pages));
  }
  return absl::OkStatus();
}

cuda::Copy EngineSession::Begin(const core::CopyStarted& effect, std::vector<std::byte*> slots) {
  Pending& pending = pending_[CellOf(effect.tag)];
  cuda::Copy copy;
  copy.op = effect.op;
  copy.direction = effect.direction == core::Direction::kLoad ? cuda::Direction::kLoad : cuda::Direction::kStore;
  copy.memory = registration_.memory;
  copy.group = pending.group;
  copy.slots = std::move(slots);
  copy.first_layer = pending.first_layer;
  copy.layer_count = pending.layers;
  copy.progress = std::make_shared<BoardProgress>(memory_, CellOf(effect.tag), pending.sequence, on_gpu());
  copy.bus = bus_claim_;
  if (pending.ready_by_nanos != 0) {
    copy.pages_ready = std::make_shared<BoardReady>(memory_, CellOf(effect.tag), pending.sequence);
    copy.ready_by_nanos = pending.ready_by_nanos;
  }
  const uint32_t per_chunk = copy.layout().pages_per_chunk;
  if (effect.chunk_of.size() * per_chunk == pending.pages.size()) {
    copy.page_table = std::move(pending.pages);
  } else {
    for (const uint32_t chunk : effect.chunk_of) {
      const PageId* first = pending.pages.data() + size_t{chunk} * per_chunk;
      copy.page_table.insert(copy.page_table.end(), first, first + per_chunk);
    }
  }
  pending.pages = std::vector<PageId>();
  return copy;
}

void EngineSession::Answer(const core::LookupAnswered& answer) {
  const uint32_t asked = pending_[CellOf(answer.tag)].keys;
  ++(answer.chunks == 0 ? traffic_.lookups_missed : answer.chunks < asked ? traffic_.lookups_partial : traffic_.lookups_hit);
  traffic_.chunks_asked += asked;
  traffic_.chunks_hit += answer.chunks;
  End(CellOf(answer.tag), SequenceOf(answer.tag), absl::OkStatus(), answer.chunks, answer.coming, 0, answer.lease.Pack());
  if (answer.waited) RecordLatency(pending_[CellOf(answer.tag)]);
}

void EngineSession::Answer(const core::Answered& answered) {
  const Pending& pending = pending_[CellOf(answered.tag)];
  if (!answered.status.ok()) ++traffic_.failed[HookOf(pending.opcode)];
  End(CellOf(answered.tag), SequenceOf(answered.tag), answered.status, answered.chunks, 0, 0, answered.allocation.Pack());
  RecordLatency(pending);
}

void EngineSession::Answer(const core::Flushed& flushed) {
  const Pending& pending = pending_[CellOf(flushed.tag)];
  if (!flushed.status.ok()) ++traffic_.failed[HookOf(pending.opcode)];
  const auto chunks = static_cast<uint32_t>(std::min<uint64_t>(flushed.chunks, UINT32_MAX));
  End(CellOf(flushed.tag), SequenceOf(flushed.tag), flushed.status, chunks, 0, 0, 0);
  RecordLatency(pending);
}

void EngineSession::Answer(const core::OpEnded& ended) {
  const Pending& pending = pending_[CellOf(ended.tag)];
  const bool load = pending.opcode == shm::Opcode::kLoad || pending.opcode == shm::Opcode::kSwapIn;
  const Bytes bytes = ended.copied == 0
                          ? Bytes{}
                          : registration_.memory->layouts[pending.group.value].layer_bytes() * pending.layers * ended.copied;
  if (IsSwap(pending.opcode)) {
    (load ? traffic_.bytes_swapped_in : traffic_.bytes_swapped_out) += bytes;
  } else {
    (load ? traffic_.chunks_loaded : traffic_.chunks_stored) += ended.copied;
    (load ? traffic_.bytes_loaded : traffic_.bytes_stored) += bytes;
  }
  traffic_.chunks_skipped += ended.skipped;
  traffic_.chunks_refused += ended.refused;
  if (!ended.status.ok()) ++traffic_.failed[HookOf(pending.opcode)];
  End(CellOf(ended.tag), SequenceOf(ended.tag), ended.status, ended.copied, ended.skipped, ended.refused, 0);
  RecordLatency(pending);
}

bool EngineSession::Abandoned(core::RequestTag tag) const {
  // Acquire: what is read here is read after the copy's bytes, which its completion brought.
  return memory_->cell(CellOf(tag))->abandoned.load(std::memory_order_acquire) != 0;
}

void EngineSession::End(uint32_t cell_index, uint32_t sequence, const absl::Status& status, uint32_t copied,
                        uint32_t skipped, uint32_t refused, uint64_t handle) {
  Pending& pending = pending_[cell_index];
  if (pending.busy) {
    --ops_in_flight_;
    pages_in_flight_ -= pending.page_count;
  }
  pending.busy = false;
  pending.op = {};
  pending.pages = std::vector<PageId>();  // and their memory: a refused request may name half a million
  shm::Cell* cell = memory_->cell(cell_index);
  cell->status = static_cast<uint32_t>(status.code());
  cell->copied = copied;
  cell->skipped = skipped;
  cell->refused = refused;
  cell->lease = handle;
  if (!status.ok()) {
    const size_t n = std::min(status.message().size(), sizeof cell->message - 1);
    std::memcpy(cell->message, status.message().data(), n);
    cell->message[n] = '\0';
  }
  // Before the answer, whose first word has brought this line: behind it the client's core would have to be asked for it.
  const int64_t asked_nanos = cell->asked_nanos.load(std::memory_order_relaxed);
  Publish(cell, shm::PackProgress(sequence, shm::Phase::kEnded, status.ok() ? pending.layers : 0), on_gpu());
  RecordWait(asked_nanos, pending);
}

void EngineSession::RecordLatency(const Pending& pending) {
  if (latencies_ != nullptr) latencies_->hooks[HookOf(pending.opcode)].Record(MonotonicNanos() - pending.taken_nanos);
}

// A request that came after the last look at the clock has waited for nothing.
void EngineSession::RecordWait(int64_t asked_nanos, const Pending& pending) {
  if (latencies_ == nullptr || asked_nanos < opened_nanos_) return;  // it doesn't say, or makes no sense
  latencies_->waits[static_cast<size_t>(Queue::kRing)].Record(pending.taken_nanos - asked_nanos);
}

}  // namespace kvist::session
