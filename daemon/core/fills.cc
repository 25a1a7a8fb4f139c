#include "daemon/core/fills.h"

#include "storage/base/check.h"

namespace kvist::core {

Fill& Fills::Begin(ChunkIndex chunk, uint32_t generation, InstanceId writer, uint32_t ranks, absl::Time deadline) {
  Fill fill;
  fill.writer = writer;
  fill.all = ranks == 64 ? ~uint64_t{0} : (uint64_t{1} << ranks) - 1;
  fill.deadline = deadline;
  by_deadline_.push_back({deadline, chunk, generation});
  by_writer_[writer].insert(chunk);
  const auto [at, fresh] = fills_.emplace(chunk, fill);
  KVIST_CHECK(fresh);
  return at->second;
}

Fill* Fills::Find(ChunkIndex chunk) {
  const auto found = fills_.find(chunk);
  return found == fills_.end() ? nullptr : &found->second;
}

void Fills::End(ChunkIndex chunk) {
  const auto found = fills_.find(chunk);
  KVIST_CHECK(found != fills_.end());
  const auto of_writer = by_writer_.find(found->second.writer);
  of_writer->second.erase(chunk);
  if (of_writer->second.empty()) by_writer_.erase(of_writer);
  fills_.erase(found);
}

std::vector<ChunkIndex> Fills::OfWriter(InstanceId writer) const {
  const auto found = by_writer_.find(writer);
  if (found == by_writer_.end()) return {};
  return {found->second.begin(), found->second.end()};
}

}  // namespace kvist::core
