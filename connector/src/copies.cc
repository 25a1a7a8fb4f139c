// Loads, stores and swaps: how they begin.

#include <utility>

#include "absl/strings/str_cat.h"
#include "connector/src/client.h"
#include "storage/base/status.h"

namespace kvist::connector {

absl::Status Client::NoGroup(uint32_t group) const {
  return absl::InvalidArgumentError(
      absl::StrCat("group is ", group, ", the space has ", registration_.groups().size(), " cache groups"));
}

absl::Status Client::CheckPages(uint32_t group, uint64_t chunks, const uint32_t* pages, size_t page_count) const {
  if (!registration_.worker())
    return absl::FailedPreconditionError("this client is a scheduler: load, store and swap from a worker");
  if (group >= registration_.groups().size()) return NoGroup(group);
  if (chunks == 0 || chunks > shm::kKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk count is ", chunks, ", allowed are 1 to ", shm::kKeysMax, " at once"));
  }
  const uint64_t wanted = chunks * registration_.groups()[group].pages_per_chunk;
  if (pages == nullptr || page_count != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_count is ", page_count, ", ", chunks, " chunks have ", wanted, " pages"));
  }
  return absl::OkStatus();
}

absl::Status Client::CheckLayers(uint32_t group, uint32_t first_layer, uint32_t layer_count) const {
  const uint32_t layers = registration_.groups()[group].layers;
  if (first_layer < layers && layer_count <= layers - first_layer) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("layers [", first_layer, ", +", layer_count, ") of ", layers));
}

absl::StatusOr<kvist_op> Client::Begin(shm::Entry* entry, Kind kind, std::span<const ChunkKey> keys,
                                       std::span<const uint32_t> pages, int64_t deadline_us, After after) {
  const std::shared_ptr<Link> link = this->link();
  if (link == nullptr) return Away();
  if (after.what < KVIST_AFTER_NOTHING || after.what > KVIST_AFTER_LAYERS)
    return absl::InvalidArgumentError(absl::StrCat("after is ", after.what, ", which is no kvist_after"));
  if (after.what != KVIST_AFTER_NOTHING) {
    // Before anything is submitted.
    KVIST_RETURN_IF_ERROR(after.what == KVIST_AFTER_STREAM ? link->MayGive(after.stream) : link->HasStreams());
    entry->flags |= shm::kAfterStream;
  }
  entry->keys = static_cast<uint32_t>(keys.size());
  entry->pages = static_cast<uint32_t>(pages.size());
  const int64_t asked_nanos = MonotonicNanos();
  entry->deadline_nanos = DeadlineNanos(deadline_us, asked_nanos);
  const std::span<const std::byte> arguments[] = {std::as_bytes(keys), std::as_bytes(pages)};
  KVIST_ASSIGN_OR_RETURN(const Link::Ticket ticket, link->Begin(entry, arguments, asked_nanos, Link::Room::kNow));
  if (after.what == KVIST_AFTER_STREAM) {
    if (absl::Status status = link->PagesReady(ticket, UINT32_MAX, after.stream); !status.ok()) {
      // It has not begun and never will.
      Op op{link, ticket, kind, GivenUp::kNo, entry->deadline_nanos};
      const kvist_op handle = Remember(op);
      op.generation = static_cast<uint32_t>(handle >> 32);
      GiveUp(handle, &op, GivenUp::kCancelled);
      if (TakeOp(handle)) link->Forget(ticket, shm::Opcode::kStore);
      return status;
    }
  }
  const uint32_t parent = (entry->flags & shm::kHasParent) != 0 ? 1 : 0;
  return Remember({link, ticket, kind, GivenUp::kNo, entry->deadline_nanos, false, after.what == KVIST_AFTER_LAYERS,
                   entry->keys > 0 ? entry->keys - parent : entry->chunks});
}

absl::StatusOr<kvist_op> Client::Load(const kvist_load_args& args) {
  if (args.lease == 0) return absl::InvalidArgumentError("lease is 0: a load needs the lease of a lookup");
  KVIST_RETURN_IF_ERROR(CheckPages(args.group, args.chunk_count, args.pages, args.page_count));
  KVIST_RETURN_IF_ERROR(CheckLayers(args.group, args.first_layer, args.layer_count));
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kLoad;
  entry.group = static_cast<uint16_t>(args.group);
  entry.lease = args.lease;
  entry.first_chunk = args.first_chunk;
  entry.chunks = args.chunk_count;
  entry.layer = {args.first_layer, args.layer_count};
  return Begin(&entry, Kind::kLoad, {}, {args.pages, args.page_count}, args.deadline_us, {args.after, args.stream});
}

absl::StatusOr<kvist_op> Client::Store(const kvist_store_args& args) {
  if (args.keys == nullptr || args.first_chunk >= args.key_count)
    return absl::InvalidArgumentError(
        absl::StrCat("chunks [", args.first_chunk, ", ", args.key_count, "): nothing to store"));
  KVIST_RETURN_IF_ERROR(CheckPages(args.group, args.key_count - args.first_chunk, args.pages, args.page_count));
  const uint32_t parent = args.first_chunk > 0 ? 1 : 0;
  const std::span keys(reinterpret_cast<const ChunkKey*>(args.keys), args.key_count);
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kStore;
  entry.group = static_cast<uint16_t>(args.group);
  if (parent != 0) entry.flags |= shm::kHasParent;
  return Begin(&entry, Kind::kStore, keys.subspan(args.first_chunk - parent), {args.pages, args.page_count},
               args.deadline_us, {args.after, args.stream});
}

absl::StatusOr<kvist_op> Client::Swap(const kvist_swap_args& args, Kind kind) {
  if (args.allocation == 0) return absl::InvalidArgumentError("allocation is 0: a swap needs one of kvist_alloc");
  KVIST_RETURN_IF_ERROR(CheckPages(args.group, args.chunk_count, args.pages, args.page_count));
  KVIST_RETURN_IF_ERROR(CheckLayers(args.group, args.first_layer, args.layer_count));
  shm::Entry entry{};
  entry.opcode = kind == Kind::kStore ? shm::Opcode::kSwapOut : shm::Opcode::kSwapIn;
  entry.group = static_cast<uint16_t>(args.group);
  entry.lease = args.allocation;
  entry.first_chunk = args.first_chunk;
  entry.chunks = args.chunk_count;
  entry.layer = {args.first_layer, args.layer_count};
  return Begin(&entry, kind, {}, {args.pages, args.page_count}, args.deadline_us, {args.after, args.stream});
}

}  // namespace kvist::connector
