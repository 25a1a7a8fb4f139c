// Operations under way: waiting for them, giving them up, forgetting them.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "connector/src/client.h"
#include "connector/src/error.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::connector {
namespace {

// An engine that died or forgot must not hold stores back for longer than this, even where kvistd wouldn't stop it sooner.
constexpr int64_t kBusBusyUsMax = 1'000'000;

}  // namespace

kvist_op Client::Remember(Op op) {
  MutexLock lock(&mutex_);
  if (free_ops_.empty()) {
    free_ops_.push_back(static_cast<uint32_t>(ops_.size()));
    ops_.emplace_back();
  }
  const uint32_t index = free_ops_.back();
  free_ops_.pop_back();
  op.generation = ops_[index].generation + 1;
  ops_[index] = std::move(op);
  return uint64_t{ops_[index].generation} << 32 | index;
}

std::optional<Client::Op> Client::FindOp(kvist_op handle) const {
  MutexLock lock(&mutex_);
  const auto index = static_cast<uint32_t>(handle);
  if (index >= ops_.size() || ops_[index].generation != handle >> 32 || ops_[index].generation % 2 == 0) return std::nullopt;
  return ops_[index];
}

bool Client::TakeOp(kvist_op handle) {
  MutexLock lock(&mutex_);
  const auto index = static_cast<uint32_t>(handle);
  if (index >= ops_.size() || ops_[index].generation != handle >> 32) return false;
  const uint32_t generation = ops_[index].generation + 1;
  ops_[index] = Op{};
  ops_[index].generation = generation;
  free_ops_.push_back(index);
  return true;
}

void Client::GiveUp(kvist_op handle, Op* op, GivenUp how) {
  op->given_up = how;
  {
    MutexLock lock(&mutex_);
    const auto index = static_cast<uint32_t>(handle);
    if (index >= ops_.size() || ops_[index].generation != op->generation || ops_[index].given_up != GivenUp::kNo) return;
    ops_[index].given_up = how;
  }
  op->link->ReleaseStreams(op->ticket);
  if (op->kind == Kind::kStore) op->link->Abandon(op->ticket);
  shm::Entry cancel{};
  cancel.opcode = shm::Opcode::kCancel;
  cancel.cell = op->ticket.cell;
  cancel.sequence = op->ticket.sequence;
  op->link->Tell(cancel);
}

absl::Status Client::Cancel(kvist_op handle) {
  std::optional<Op> op = FindOp(handle);
  if (!op.has_value()) return absl::OkStatus();  // it has ended and was asked for
  if (!IsCopy(op->kind)) {                       // has no pages: nobody need ask for it again
    if (TakeOp(handle)) op->link->Forget(op->ticket, OpcodeOf(op->kind));
    return absl::OkStatus();
  }
  if (op->given_up == GivenUp::kNo && !Link::Over(op->ticket, op->link->Progress(op->ticket), UINT32_MAX))
    GiveUp(handle, &*op, GivenUp::kCancelled);
  return absl::OkStatus();
}

absl::StatusOr<Client::Op> Client::CopyUnderWay(kvist_op handle) const {
  const std::optional<Op> op = FindOp(handle);
  if (!op.has_value() || !IsCopy(op->kind))
    return absl::InvalidArgumentError("no such copy: it has ended and its result was given out, or it never began");
  return *op;
}

absl::Status Client::WaitOnStream(kvist_op handle, uint32_t layers, void* stream) {
  KVIST_ASSIGN_OR_RETURN(const Op op, CopyUnderWay(handle));
  KVIST_RETURN_IF_ERROR(op.link->HasStreams());
  if (op.given_up != GivenUp::kNo || Link::Over(op.ticket, op.link->Progress(op.ticket), layers)) return absl::OkStatus();
  KVIST_RETURN_IF_ERROR(op.link->WaitOnStream(op.ticket, layers, stream));
  bool gone = false;
  {
    MutexLock lock(&mutex_);
    Op& kept = ops_[static_cast<uint32_t>(handle)];
    gone = kept.generation != op.generation || kept.given_up != GivenUp::kNo;
    if (!gone) kept.awaited_by_stream = true;
  }
  if (gone) op.link->ReleaseStreams(op.ticket);
  HaveKeeperLook();
  return absl::OkStatus();
}

void Client::HaveKeeperLook() {
  if (keeper_looks_.exchange(true, std::memory_order_acq_rel)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

absl::Status Client::PagesReady(kvist_op handle, uint32_t layers, void* stream) {
  KVIST_ASSIGN_OR_RETURN(const Op op, CopyUnderWay(handle));
  if (!op.by_layers) return absl::InvalidArgumentError("the copy doesn't wait for layers: begin it with KVIST_AFTER_LAYERS");
  return op.link->PagesReady(op.ticket, layers, stream);
}

absl::Status Client::BusBusy(int64_t for_us) {
  if (for_us < 0 || for_us > kBusBusyUsMax)
    return absl::InvalidArgumentError(
        absl::StrCat("for_us is ", for_us, ": say 0 to ", kBusBusyUsMax, ", and again when it takes longer"));
  if (const std::shared_ptr<Link> current = link(); current != nullptr) current->ClaimBus(MonotonicNanos() + for_us * 1000);
  return absl::OkStatus();
}

bool Client::GiveUpLate() {
  const int64_t now = MonotonicNanos();
  std::vector<std::pair<kvist_op, Op>> late;
  bool others = false;
  {
    MutexLock lock(&mutex_);
    for (uint32_t index = 0; index < ops_.size(); ++index) {
      const Op& op = ops_[index];
      if (op.generation % 2 == 0 || !op.awaited_by_stream || op.given_up != GivenUp::kNo) continue;
      if (Link::Over(op.ticket, op.link->Progress(op.ticket), UINT32_MAX)) continue;
      if (now >= op.deadline_nanos) {
        late.emplace_back(uint64_t{op.generation} << 32 | index, op);
      } else {
        others = true;
      }
    }
  }
  for (auto& [handle, op] : late) GiveUp(handle, &op, GivenUp::kLate);
  return others;
}

absl::Status Client::Wait(kvist_op handle, uint32_t layers, int64_t timeout_us, kvist_result* result) {
  const auto unknown = [&] {
    result->status = KVIST_INVALID_ARGUMENT;
    result->pages_released = 1;
    return absl::InvalidArgumentError("no such operation: it has ended and its result was given out, or it never began");
  };
  const std::optional<Op> found = FindOp(handle);
  if (!found.has_value() || !IsCopy(found->kind)) return unknown();
  Op op = *found;
  uint64_t progress = op.link->Progress(op.ticket);
  const auto over = [&] { return Link::Over(op.ticket, progress, layers); };
  // The result of a store that was given up is known without the daemon.
  const bool store_given_up = op.kind == Kind::kStore && op.given_up != GivenUp::kNo;
  if (!over() && !store_given_up) {
    const int64_t until = timeout_us > 0 ? DeadlineNanos(timeout_us) : 0;
    // A load that is late or cancelled is still waited for: its pages are what the caller wants back.
    const int64_t stop = op.given_up == GivenUp::kNo ? std::min(until, op.deadline_nanos) : until;
    if (stop > 0 && timeout_us > 0) progress = op.link->Await(op.ticket, layers, stop, Link::kNoSpin);
    if (!over() && op.given_up == GivenUp::kNo && MonotonicNanos() >= op.deadline_nanos) GiveUp(handle, &op, GivenUp::kLate);
  }
  if (!Fill(handle, op, progress, result)) return unknown();
  if (result->status == KVIST_PENDING && !over()) {
    return timeout_us > 0 ? absl::DeadlineExceededError("the operation is still under way") : absl::OkStatus();
  }
  return absl::OkStatus();
}

bool Client::Fill(kvist_op handle, const Op& op, uint64_t progress, kvist_result* result) {
  const size_t size = result->struct_size;
  *result = kvist_result{};
  result->struct_size = size;
  if (shm::SequenceOf(progress) != op.ticket.sequence) return false;  // whoever took it gave its cell to another operation
  if (shm::PhaseOf(progress) != shm::Phase::kEnded) {
    result->layers = shm::LayersOf(progress);
    if (op.given_up == GivenUp::kNo) {
      result->status = KVIST_PENDING;
      return true;
    }
    result->status = op.given_up == GivenUp::kCancelled ? KVIST_CANCELLED : KVIST_DEADLINE_EXCEEDED;
    Report(absl::DeadlineExceededError(op.given_up == GivenUp::kCancelled ? "the operation was cancelled"
                                                                          : "the operation's deadline has passed"));
    if (op.kind == Kind::kStore) {
      result->pages_released = 1;
      if (!TakeOp(handle)) return false;
      op.link->Forget(op.ticket, shm::Opcode::kStore);
    }
    return true;
  }
  if (!TakeOp(handle)) return false;
  const shm::Cell& cell = op.link->cell(op.ticket);
  auto code = static_cast<absl::StatusCode>(cell.status);
  // Cancelled because it was late, by whoever saw that first.
  if (code == absl::StatusCode::kCancelled && op.given_up == GivenUp::kLate) code = absl::StatusCode::kDeadlineExceeded;
  result->status = CodeOf(code);
  result->pages_released = 1;
  // Each chunk that was asked for has one of three ends, whatever the daemon says.
  result->chunks_copied = std::min(cell.copied, op.chunks);
  result->chunks_skipped = std::min(cell.skipped, op.chunks - result->chunks_copied);
  result->chunks_refused = std::min(cell.refused, op.chunks - result->chunks_copied - result->chunks_skipped);
  result->layers = shm::LayersOf(progress);
  if (code != absl::StatusCode::kOk)
    Report(absl::Status(code, absl::string_view(cell.message, ::strnlen(cell.message, sizeof cell.message))));
  op.link->Finish(op.ticket);
  return true;
}

}  // namespace kvist::connector
