// What the core writes to a disk below the slots: what is worth least, before its slots are needed; and what shall survive the daemon.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

void Core::ServeBelow(Effects* out) {
  if (std::vector<PlacesFreed::Chunk> forgotten = placement_.TakeForgotten(); !forgotten.empty())
    out->push_back(PlacesFreed{std::move(forgotten)});
  for (PinsNoted& noted : pin_notes_.Take()) out->push_back(std::move(noted));
  for (UsesNoted& noted : use_notes_.Take(ages_)) out->push_back(std::move(noted));
  if (WaitsForSlots()) BeginReads(out);
  if (options_.disk.has_value()) ServeDisk(out);
  if (options_.remote.has_value()) WriteRemote(out);
}

void Core::ServeDisk(Effects* out) {
  if (!MayWrite()) return;
  const uint32_t first = written_last_ + 1;  // where all want more than is written at a time, each has its turn
  for (uint32_t n = 0; n < tenants_.size(); ++n) {
    const TenantId id{(first + n) % tenants_.size()};
    Tenant& tenant = tenants_[id];
    const Bytes wanted = std::max(ReserveOf(tenant), tenant.read_waits);
    const Bytes enough = wanted + std::min(wanted / 2, options_.disk->writing / 8);
    const auto will_be = [&] { return AtHand(tenant) + tenant.writing + tenant.clean->awaiting(); };
    tenant.refills |= will_be() < wanted;
    copied_.clear();
    while (tenant.refills && MayWrite() && !placement_.spent()) {
      const ChunkIndex victim = will_be() < enough ? tenant.clean->NextUnwritten() : kNoChunk;
      if (victim == kNoChunk) {
        tenant.refills = false;
        break;
      }
      chunks_.Charge(1);
      if (placement_.vacating().IsCopied(victim)) {
        copied_.push_back(victim);
        continue;
      }
      if (chunks_[victim].epoch != spaces_[chunks_[victim].space].epoch) {
        if (chunks_[victim].residents == 0) Detach(victim);  // cleared: were it written now, a restart would find it
      } else if (chunks_[victim].disk == DiskCopy::kThere || spaces_[chunks_[victim].space].no_disk) {
        tenant.clean->Add(victim);  // or waiting wouldn't help
      } else {
        BeginWrite(victim, out);
        tenant.clean->BeingWritten(victim);
        written_last_ = id.value;
      }
    }
    // Back to where they were, so that the first is the first again.
    for (size_t i = copied_.size(); i-- > 0;) tenant.policy->Exposed(copied_[i]);
  }
}

Bytes Core::ReserveOf(const Tenant& tenant) const {
  return options_.disk.has_value() ? std::min(options_.disk->reserve, tenant.quota / 4) : Bytes{};
}

Bytes Core::AtHand(const Tenant& tenant) const {
  const Bytes left = tenant.quota - std::min(tenant.used, tenant.quota);
  return std::min(left, slots_.free_bytes()) + (tenant.clean != nullptr ? tenant.clean->bytes() : Bytes{});
}

void Core::BeginWrite(ChunkIndex i, Effects* out) {
  Chunk& chunk = chunks_[i];
  KVIST_CHECK(chunk.state == ChunkState::kSealed && !chunk.detached);
  KVIST_CHECK(chunk.disk == DiskCopy::kNone || chunk.disk == DiskCopy::kThere);
  if (chunk.disk == DiskCopy::kNone) NoteCame(i, Tier::kSsd);  // else it moves there
  chunk.disk = chunk.disk == DiskCopy::kNone ? DiskCopy::kWriting : DiskCopy::kMoving;
  ++chunk.holds;
  const Bytes bytes = BytesOf(i);
  writes_.Begin(i, bytes);
  tenants_[spaces_[chunk.space].tenant].writing += bytes;
  const std::span<const SlotRef> slots = placement_.SlotsOf(i);
  chunks_.Charge(slots.size());
  WriteStarted write{RefOf(i), chunk.space, chunk.group, chunk.key, {}, chunk.position, {slots.begin(), slots.end()}};
  if (chunk.parent != kNoChunk) write.parent = chunks_[chunk.parent].key;
  write.hint = chunk.hint();
  if (chunk.on_disk()) write.method = placement_.FormOf(i).method;
  if (const auto recoding = recodings_.find(i); recoding != recodings_.end()) {
    write.method = recoding->second.method;
    write.may_stay = true;
  }
  out->push_back(std::move(write));
}

void Core::On(const WriteFinished& event, Effects* out) {
  const ChunkIndex i = Find(event.chunk);
  if (event.to == Tier::kRemote) return RemoteWritten(i, event.status, out);
  if (i == kNoChunk || !writes_.Has(i)) return;  // a late duplicate
  Chunk& chunk = chunks_[i];
  const Bytes bytes = BytesOf(i);
  writes_.End(i, bytes);
  tenants_[spaces_[chunk.space].tenant].writing -= bytes;
  --chunk.holds;
  const bool moved = chunk.disk == DiskCopy::kMoving;
  const bool recoded = EndRecodingOf(i, event);
  chunk.disk = moved ? DiskCopy::kThere : DiskCopy::kNone;
  const bool lost = places_lost_.erase(i) > 0;
  chunks_.Charge(1 + event.places.size());
  if (event.status.ok()) {
    ++(recoded ? counters_.chunks_recoded : moved ? counters_.chunks_moved : counters_.chunks_written);
    const bool encoded = event.form.method != 0;
    if (ages_.Wrote(encoded ? event.form.bytes * event.places.size() : bytes)) {
      pins_used_to_ = 0;
      use_notes_.Turned();
    }
    if (!ages_.Lately(chunk.disk_use, chunk.stop_reason)) chunk.disk_use = ages_.before();
    no_room_ = false;
    if (moved) placement_.ForgetPlaces(i, /*replaced=*/true);
    placement_.SetPlaces(i, event.places, event.form);
    if (!moved && ages_.Lately(chunk.disk_use, chunk.stop_reason)) NoteUse(i);
  } else {
    const bool stays = absl::IsAlreadyExists(event.status);
    counters_.writes_failed += stays ? 0 : 1;
    spaces_[chunk.space].no_disk |= absl::IsInvalidArgument(event.status);
    // Then only doing without makes some. But nothing has to do without for what is only to be encoded.
    no_room_ |= absl::IsResourceExhausted(event.status) && !recoded;
    if (moved && ((no_room_ && !recoded) || lost)) {
      counters_.chunks_reclaimed += lost ? 0 : 1;
      placement_.ForgetPlaces(i);
    }
    if (absl::IsDataLoss(event.status)) DropCorrupt(i, out);
  }
  flushes_.WriteEnded(i, chunk.space, chunk.disk == DiskCopy::kThere);
  Settle(i);
  EndFlushes(out);
}

void Core::Settle(ChunkIndex i) {
  const Chunk& chunk = chunks_[i];
  if (!chunk.needed() && (chunk.detached || !chunk.whole())) {
    placement_.Collect(i);
  } else {
    Offer(i);
  }
}

// A chunk that was withdrawn from the policy's order, and is worth least.
void Core::Offer(ChunkIndex i) {
  const Chunk& chunk = chunks_[i];
  EvictionPolicy& policy = placement_.PolicyOf(i);
  if (chunk.state != ChunkState::kSealed || chunk.detached || !chunk.goes() || policy.Knows(i)) return;
  const Space& space = spaces_[chunk.space];
  if (chunk.disk == DiskCopy::kThere || space.no_disk) {
    tenants_[space.tenant].clean->Add(i);
  } else {
    policy.Returned(i);  // behind others: it isn't the next that is tried again
  }
}

void Core::On(const DiskWritable& event, Effects* out) {
  writable_ = event.writable;
  EndFlushes(out);
}

// ---- Flushes ----------------------------------------------------------------------------------------------------------------

void Core::On(const FlushAsked& event, Effects* out) {
  Flush flush{.session = event.session, .tag = event.tag, .space = {}, .end = chunks_.places()};
  if (event.session.has_value()) {
    const Session* session = sessions_.Find(*event.session);
    if (session == nullptr || session->closed) return;
    flush.space = session->space;
  }
  const auto refuse = [&](absl::Status why) { out->push_back(Flushed{event.session, event.tag, std::move(why)}); };
  if (!options_.disk.has_value())
    return refuse(
        absl::FailedPreconditionError("this kvistd has no SSD tier: set ssd.enabled and ssd.capacity in its configuration"));
  if (event.session.has_value() && flushes_.HasOf(*event.session))
    return refuse(absl::ResourceExhaustedError("the session's last flush hasn't ended: wait for it"));
  flushes_.Add(flush);
  EndFlushes(out);
}

void Core::GoOnFlushing(uint64_t until, Effects* out) {
  while (CanFlush() && chunks_.work() < until) {
    Flush& flush = flushes_.first();
    const ChunkIndex i = flush.next++;
    const Chunk& chunk = chunks_[i];
    chunks_.Charge(1);
    const bool meant = chunk.whole() && !chunk.detached && chunk.epoch == spaces_[chunk.space].epoch &&
                       (!flush.space.has_value() || chunk.space == *flush.space);
    // What is in a remote store only isn't this node's to keep.
    if (meant && chunk.disk == DiskCopy::kNone && chunk.state == ChunkState::kSealed) {
      if (spaces_[chunk.space].no_disk)
        ++flush.failed;
      else
        BeginWrite(i, out);  // it keeps its place in the policy's order
    }
    if (meant && chunk.disk == DiskCopy::kThere) ++(places_lost_.contains(i) ? flush.failed : flush.chunks);
    flush.writes = writes_.next();
  }
  EndFlushes(out);
}

void Core::EndFlushes(Effects* out) {
  while (!flushes_.empty() && writable_.has_value()) {  // one that isn't ready yet will be
    const Flush& flush = flushes_.first();
    // Also when the disk takes no more: what of it was taken isn't durable yet.
    if (flush.looked() ? !writes_.EndedBelow(flush.writes) : *writable_) return;
    absl::Status status;
    if (!flush.looked()) {
      status = absl::UnavailableError("the SSD tier takes no writes now; kvistd's log says why");
    } else if (flush.failed > 0) {
      status = absl::UnavailableError(absl::StrCat(flush.failed, " chunks could not be written; kvistd's log says why"));
    }
    out->push_back(Flushed{flush.session, flush.tag, std::move(status), flush.chunks});
    if (!flush.session.has_value()) use_notes_.HandOn();  // an engine's may come often
    flushes_.TakeFirst();
  }
}

}  // namespace kvist::core
