// Encoding what the disk has of a prompt another way: a few chunks at a time are read into slots, unless they are there, and written again.

#include <algorithm>
#include <utility>

#include "daemon/core/core.h"

namespace kvist::core {
namespace {

constexpr size_t kAtOnce = 64;  // chunks

}  // namespace

Core::Turn Core::GoOnRecodingOnDisk(Job* job, PromptJob* of, uint64_t until, Effects* out) {
  if (of->look == 0) job_heard_ = false;
  while (of->look < of->kept.size()) {
    if (chunks_.work() >= until) return Turn::kMore;
    PromptJob::Kept& kept = of->kept[of->look];
    if (!kept.moves) {
      const Turn turn = BeginRecodingOf(kept.chunk, job, *of, out);
      if (turn == Turn::kMore) return turn;
      kept.moves = turn == Turn::kDone;
      of->moves_on |= kept.moves;
    }
    chunks_.Charge(1);
    // In their order, for a chunk keeps in slots what it hangs on.
    if (!kept.moves || recodings_.contains(kept.chunk) || of->look > 0) {
      ++of->look;
      continue;
    }
    const PromptJob::Kept done = kept;
    of->kept.erase(of->kept.begin() + static_cast<std::ptrdiff_t>(of->look));
    of->moves_on = true;
    ++job->done;
    LetGoOfRecoded(done, of);
  }
  if (!TakeToRecode(job, of, until)) return Turn::kMore;
  if (of->kept.empty() && of->next == job->total) return Turn::kDone;
  of->look = 0;
  return std::exchange(of->moves_on, false) || job_heard_ ? Turn::kMore : Turn::kWaits;
}

void Core::LetGoOfRecoded(const PromptJob::Kept& kept, PromptJob* of) {
  const ChunkRef name = RefOf(kept.chunk);
  of->kept_bytes -= BytesOf(kept.chunk);
  KeepNoLonger({&kept.chunk, 1});
  const ChunkIndex still = kept.was_in_slots ? kNoChunk : Find(name);  // else it has only passed through them
  if (still != kNoChunk && chunks_[still].state == ChunkState::kSealed && chunks_[still].disk == DiskCopy::kThere &&
      !chunks_[still].busy())
    FreeSlotsOf(still);
}

bool Core::TakeToRecode(Job* job, PromptJob* of, uint64_t until) {
  const Space& space = spaces_[*job->space];
  const size_t groups = space.spec.groups.size();
  const Bytes most = ShareOf(std::min(tenants_[space.tenant].quota, slots_.capacity()), options_.lease_share);
  for (; of->next < job->total && of->kept.size() < kAtOnce; ++of->next) {
    if (chunks_.work() >= until) return false;
    const size_t item = job->total - 1 - of->next;  // the last first: a chunk keeps in slots what it hangs on
    const GroupId group{static_cast<uint16_t>(item % groups)};
    const ChunkIndex i = chunks_.FindVisible(*job->space, group, space.epoch, of->keys[item / groups]);
    chunks_.Charge(1);
    const bool there = i != kNoChunk && chunks_[i].on_disk();
    const bool already = there && chunks_[i].disk == DiskCopy::kThere && placement_.FormOf(i).method == of->method;
    if (!there || already) {
      job->already += already ? 1 : 0;
      ++job->done;
      continue;
    }
    if (!of->kept.empty() && of->kept_bytes + BytesOf(i) > most) break;
    of->kept_bytes += BytesOf(i);
    of->moves_on = true;
    of->kept.push_back({i, /*moves=*/false, /*was_in_slots=*/chunks_[i].state != ChunkState::kBelow});
    Keep({&i, 1});
  }
  return true;
}

Core::Turn Core::BeginRecodingOf(ChunkIndex i, Job* job, const PromptJob& of, Effects* out) {
  const auto left = [job] {
    ++job->left;
    return Turn::kDone;
  };
  const Chunk& chunk = chunks_[i];
  if (chunk.state == ChunkState::kReading || chunk.disk == DiskCopy::kWriting || chunk.disk == DiskCopy::kMoving)
    return Turn::kWaits;
  if (chunk.detached || chunk.epoch != spaces_[chunk.space].epoch || !chunk.on_disk()) return left();
  const bool writes = !writable_.has_value() || *writable_;
  if (!writes || spaces_[chunk.space].no_disk) return left();
  if (chunk.state == ChunkState::kBelow) {
    const Turn turn = ReadForMove(i, out);
    if (turn == Turn::kMore) return turn;
    if (chunk.state == ChunkState::kReading) return Turn::kWaits;
    return turn == Turn::kDone || Starves() ? left() : Turn::kWaits;
  }
  if (chunk.state != ChunkState::kSealed) return left();
  if (placement_.FormOf(i).method == of.method) {  // it was written so meanwhile
    ++job->already;
    return Turn::kDone;
  }
  // Half of what may be written at a time is left to what engines wait for, and to segments that are wanted back.
  const bool enough = !recodings_.empty() && (writes_.bytes() + BytesOf(i) > Bytes{options_.disk->writing.value / 2} ||
                                              writes_.size() >= options_.disk->writes / 2);
  if (enough || !MayWrite() || placement_.vacating().IsCopied(i)) return Turn::kWaits;
  recodings_.emplace(i, Recoding{job->id, of.method});
  BeginWrite(i, out);
  return Turn::kDone;
}

bool Core::EndRecodingOf(ChunkIndex i, const WriteFinished& event) {
  const auto found = recodings_.extract(i);
  if (found.empty()) return false;
  Job* const job = jobs_.Running(found.mapped().job);
  if (job == nullptr) return true;  // it was cancelled
  if (!event.status.ok()) {
    ++(absl::IsAlreadyExists(event.status) ? job->already : job->left);
    return true;
  }
  ++job->chunks;
  const auto bytes_in = [this, i](const DiskForm& form) {
    return form.method == 0 ? BytesOf(i) : form.bytes * placement_.PlacesOf(i).size();
  };
  job->bytes += bytes_in(placement_.FormOf(i));
  job->bytes_after += bytes_in(event.form);
  job->loss.Take(event.loss);
  return true;
}

}  // namespace kvist::core
