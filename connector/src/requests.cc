// Requests that are answered at once and move no bytes: lookup, pin, allocate and the like.

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "connector/src/client.h"

namespace kvist::connector {
namespace {

static_assert(KVIST_WHERE_KEYS_MAX == shm::kWhereKeysMax);

constexpr int64_t kPrefillMaxUs = int64_t{3600} * 1'000'000;  // of one report

shm::Entry LookupEntry(uint32_t have, int64_t lease_us) {
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kLookup;
  entry.first_chunk = have;
  entry.lease_nanos = std::clamp<int64_t>(lease_us, 0, int64_t{3600} * 1'000'000) * 1000;
  return entry;
}

std::span<const ChunkKey> AsManyAsFit(std::span<const ChunkKey> keys) {
  return keys.first(std::min<size_t>(keys.size(), shm::kKeysMax));
}

}  // namespace

Client::Reply Client::Call(shm::Entry* entry, std::span<const ChunkKey> keys, int64_t deadline_us) {
  Reply reply;
  const std::shared_ptr<Link> link = this->link();
  if (link == nullptr) {
    reply.status = Away();
    return reply;
  }
  entry->keys = static_cast<uint32_t>(keys.size());
  const int64_t asked_nanos = MonotonicNanos();
  entry->deadline_nanos = DeadlineNanos(deadline_us, asked_nanos);
  const std::span<const std::byte> arguments[] = {std::as_bytes(keys)};
  const absl::StatusOr<Link::Ticket> ticket = link->Begin(entry, arguments, asked_nanos, Link::Room::kWait);
  if (!ticket.ok()) {
    reply.status = ticket.status();
    return reply;
  }
  const uint64_t progress = link->Await(*ticket, UINT32_MAX, entry->deadline_nanos, Link::SpinNanos(entry->keys));
  if (shm::PhaseOf(progress) != shm::Phase::kEnded) {
    link->Forget(*ticket, entry->opcode);
    reply.status = NoAnswer();
    return reply;
  }
  return Read(*link, *ticket);
}

Client::Reply Client::Read(Link& link, Link::Ticket ticket, std::span<uint8_t> tiers) {
  Reply reply;
  const shm::Cell& cell = link.cell(ticket);
  const auto code = static_cast<absl::StatusCode>(cell.status);
  if (code == absl::StatusCode::kOk) {
    reply.chunks = cell.copied;
    reply.coming = cell.skipped;
    reply.handle = cell.lease;
    constexpr uint8_t kKnown = KVIST_IN_DRAM | KVIST_ON_SSD | KVIST_IN_REMOTE;
    for (size_t i = 0; i < std::min(tiers.size(), sizeof cell.message); ++i)
      tiers[i] = static_cast<uint8_t>(cell.message[i]) & kKnown;
  } else {
    reply.status = absl::Status(code, absl::string_view(cell.message, ::strnlen(cell.message, sizeof cell.message)));
  }
  link.Finish(ticket);
  return reply;
}

kvist_hit Client::HitOf(const Reply& reply, uint32_t asked) const {
  kvist_hit hit{};
  hit.chunks = std::min(reply.chunks, asked);
  // No more of them than there are in all groups.
  const uint64_t found = uint64_t{hit.chunks} * registration_.groups().size();
  hit.coming = static_cast<uint32_t>(std::min<uint64_t>(reply.coming, found));
  hit.lease = reply.handle;
  return hit;
}

absl::Status Client::NoAnswer() { return absl::DeadlineExceededError("kvistd didn't answer in time: this is a miss"); }

void Client::Tell(shm::Entry entry, std::span<const ChunkKey> keys) {
  const std::shared_ptr<Link> link = this->link();
  if (link == nullptr) return;  // what it is about ended with the daemon
  entry.keys = static_cast<uint32_t>(keys.size());
  const std::span<const std::byte> arguments[] = {std::as_bytes(keys)};
  link->Tell(entry, arguments);
}

absl::Status Client::Lookup(std::span<const ChunkKey> keys, uint32_t have, int64_t lease_us, int64_t deadline_us,
                            kvist_hit* hit) {
  *hit = kvist_hit{};
  if (keys.empty()) return absl::OkStatus();
  shm::Entry entry = LookupEntry(have, lease_us);
  Reply reply = Call(&entry, AsManyAsFit(keys), deadline_us);
  *hit = HitOf(reply, entry.keys);
  return std::move(reply.status);
}

absl::StatusOr<kvist_op> Client::LookupStart(std::span<const ChunkKey> keys, uint32_t have, int64_t lease_us,
                                             int64_t deadline_us) {
  if (keys.empty()) return kvist_op{0};
  shm::Entry entry = LookupEntry(have, lease_us);
  return Begin(&entry, Kind::kLookup, AsManyAsFit(keys), {}, deadline_us, {});
}

std::optional<Client::Reply> Client::Hear(kvist_op handle, Kind kind, int64_t timeout_us, std::span<uint8_t> tiers) {
  const auto failed = [](absl::Status status) {
    Reply reply;
    reply.status = std::move(status);
    return reply;
  };
  const std::optional<Op> op = FindOp(handle);
  if (!op.has_value() || op->kind != kind) {
    return failed(
        absl::InvalidArgumentError(absl::StrCat("no ", kind == Kind::kLookup ? "lookup" : "question where chunks are",
                                                " under way: it was answered or given up, or this is another operation")));
  }
  uint64_t progress = op->link->Progress(op->ticket);
  const auto over = [&] { return Link::Over(op->ticket, progress, UINT32_MAX); };
  if (!over() && timeout_us > 0) {
    if (kind == Kind::kWhere) op->link->Hurry();
    const int64_t until = std::min(DeadlineNanos(timeout_us), op->deadline_nanos);
    progress = op->link->Await(op->ticket, UINT32_MAX, until, Link::SpinNanos(op->chunks));
  }
  const bool late = !over() && MonotonicNanos() >= op->deadline_nanos;
  if (!over() && !late) return std::nullopt;
  if (!TakeOp(handle)) return failed(absl::InvalidArgumentError("another thread has heard the answer"));
  if (late) {
    op->link->Forget(op->ticket, OpcodeOf(kind));
    return failed(NoAnswer());
  }
  Reply reply = Read(*op->link, op->ticket, tiers);
  reply.asked = op->chunks;
  return reply;
}

std::optional<absl::Status> Client::LookupResult(kvist_op handle, int64_t timeout_us, kvist_hit* hit) {
  *hit = kvist_hit{};
  if (handle == 0) return absl::OkStatus();
  std::optional<Reply> reply = Hear(handle, Kind::kLookup, timeout_us);
  if (!reply.has_value()) return std::nullopt;
  *hit = HitOf(*reply, reply->asked);
  return std::move(reply->status);
}

absl::StatusOr<kvist_op> Client::WhereStart(std::span<const ChunkKey> keys, uint32_t group, int64_t deadline_us) {
  if (keys.empty() || keys.size() > shm::kWhereKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(keys.size(), " keys; where they are is asked of 1 to ", shm::kWhereKeysMax, " at once"));
  }
  if (group >= registration_.groups().size()) return NoGroup(group);
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kWhere;
  entry.group = static_cast<uint16_t>(group);
  absl::StatusOr<kvist_op> op = Begin(&entry, Kind::kWhere, keys, {}, deadline_us, {});
  if (op.ok()) HaveKeeperLook();
  return op;
}

std::optional<absl::Status> Client::WhereResult(kvist_op handle, int64_t timeout_us, std::span<uint8_t> tiers) {
  std::fill(tiers.begin(), tiers.end(), uint8_t{0});
  std::optional<Reply> reply = Hear(handle, Kind::kWhere, timeout_us, tiers);
  return reply.has_value() ? std::optional(std::move(reply->status)) : std::nullopt;
}

uint32_t Client::FirstNeeded(uint32_t group, uint32_t chunks) const {
  const auto& groups = registration_.groups();
  return group < groups.size() ? groups[group].reuse.FirstNeeded(chunks) : 0;
}

absl::Status Client::Release(kvist_lease lease) {
  if (lease == 0) return absl::OkStatus();
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kRelease;
  entry.lease = lease;
  Tell(entry, {});
  return absl::OkStatus();
}

absl::Status Client::Pin(shm::Opcode opcode, std::span<const ChunkKey> keys, int64_t deadline_us, uint32_t* chunks) {
  *chunks = 0;
  if (keys.size() > shm::kKeysMax)
    return absl::InvalidArgumentError(absl::StrCat(keys.size(), " keys; a pin names at most ", shm::kKeysMax));
  if (keys.empty()) return absl::OkStatus();
  shm::Entry entry{};
  entry.opcode = opcode;
  Reply reply = Call(&entry, keys, deadline_us);
  *chunks = std::min<uint32_t>(reply.chunks, static_cast<uint32_t>(keys.size()));
  return std::move(reply.status);
}

absl::Status Client::Flush(int64_t deadline_us, uint32_t* chunks) {
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kFlush;
  Reply reply = Call(&entry, {}, deadline_us);
  *chunks = reply.chunks;
  return std::move(reply.status);
}

absl::Status Client::Hint(std::span<const ChunkKey> keys, const kvist_hint_args& args) {
  if (args.expected_reuse < KVIST_REUSE_UNKNOWN || args.expected_reuse > KVIST_REUSE_NEVER)
    return absl::InvalidArgumentError(absl::StrCat("expected_reuse is ", args.expected_reuse));
  if (args.stop_reason < KVIST_STOP_UNKNOWN || args.stop_reason > KVIST_STOP_TOOL_CALL)
    return absl::InvalidArgumentError(absl::StrCat("stop_reason is ", args.stop_reason));
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kHint;
  entry.hint = {static_cast<uint8_t>(args.session_ended != 0), static_cast<uint8_t>(args.expected_reuse),
                static_cast<uint8_t>(args.stop_reason)};
  for (; !keys.empty(); keys = keys.subspan(std::min<size_t>(keys.size(), shm::kKeysMax)))
    Tell(entry, keys.first(std::min<size_t>(keys.size(), shm::kKeysMax)));
  return absl::OkStatus();
}

absl::Status Client::ReportPrefill(uint32_t first_token, uint32_t token_count, int64_t took_us) {
  if (token_count == 0) return absl::InvalidArgumentError("token_count is 0");
  if (took_us <= 0 || took_us > kPrefillMaxUs)
    return absl::InvalidArgumentError(absl::StrCat("took_us is ", took_us, "; allowed are 1 to ", kPrefillMaxUs));
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kPrefill;
  entry.first_chunk = first_token;
  entry.chunks = token_count;
  entry.took_nanos = took_us * 1000;
  Tell(entry, {});
  return absl::OkStatus();
}

absl::StatusOr<kvist_allocation> Client::Allocate(uint32_t group, uint32_t chunks, int64_t deadline_us) {
  if (group >= registration_.groups().size()) return NoGroup(group);
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kAllocate;
  entry.group = static_cast<uint16_t>(group);
  entry.chunks = chunks;
  Reply reply = Call(&entry, {}, deadline_us);
  if (!reply.status.ok()) return std::move(reply.status);
  return reply.handle;
}

absl::Status Client::Free(kvist_allocation allocation) {
  if (allocation == 0) return absl::OkStatus();
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kFree;
  entry.lease = allocation;
  Tell(entry, {});
  return absl::OkStatus();
}

}  // namespace kvist::connector
