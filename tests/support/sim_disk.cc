#include "tests/support/sim_disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "storage/base/check.h"
#include "storage/base/unique_fd.h"
#include "storage/ssd/segment_header.h"

namespace kvist::test {

SimFiles::File& SimFiles::Make(uint32_t segment, uint64_t bytes) {
  File& file = files[segment];
  if (directory.empty()) {
    file.memory.resize(bytes);
    file.bytes = file.memory;
    return file;
  }
  const std::string path = directory + "/" + ssd::SegmentFileName(segment);
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  KVIST_CHECK(fd.get() >= 0 && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  auto mapping = Mapping::Create(fd.get(), {bytes}, Mapping::Access::kReadWrite);
  KVIST_CHECK(mapping.ok());
  file.mapping = *std::move(mapping);
  file.bytes = {file.mapping.data(), bytes};
  return file;
}

void SimFiles::Crash(sim::Prng* prng) {
  for (auto& [segment, file] : files) {
    const uint32_t kept = prng->Below(101);  // percent: all, none, or something between
    for (auto& [sector, unsynced] : file.unsynced) {
      if (!prng->Percent(kept)) std::memcpy(file.bytes.data() + sector * kSector, unsynced.before.data(), kSector);
    }
    file.unsynced.clear();
  }
}

void SimDisk::Submit(const ssd::Io& io) {
  KVIST_CHECK(pending_.size() < depth());
  // Writes are numbered when they are done, and heard of in the same Wait: all that are done have ended.
  pending_.push_back({io, files_.writes});
}

void SimDisk::Remove(uint32_t segment) {
  for (const Pending& pending : pending_) KVIST_CHECK(pending.io.segment != segment);
  files_.files.erase(segment);
  if (!files_.directory.empty()) ::unlink((files_.directory + "/" + ssd::SegmentFileName(segment)).c_str());
}

void SimDisk::Wait(absl::Time until, std::vector<ssd::Completion>* ended) {
  if (before_sleep && pending_.empty() && until == absl::InfiniteFuture()) before_sleep();
  until_ = woken_ || !pending_.empty() ? absl::InfinitePast() : until;  // else it doesn't sleep
  woken_ = false;
  for (uint32_t count = pending_.empty() ? 0 : prng_.Between(1, 3); count > 0 && !pending_.empty(); --count) {
    const uint32_t at = prng_.Below(pending_.size());
    const Pending pending = pending_[at];
    pending_.erase(pending_.begin() + at);
    const int error = Do(pending);
    ended->push_back({pending.io.tag, error});
  }
}

int SimDisk::Do(const Pending& pending) {
  const ssd::Io& io = pending.io;
  const auto it = files_.files.find(io.segment);
  if (io.kind == ssd::Io::Kind::kAllocate) {
    if (it != files_.files.end()) return 0;
    if (files_.files.size() >= faults_.files_max) {
      ++files_.injected.no_space;
      return faults_.no_file;
    }
    files_.Make(io.segment, segment_bytes_);
    return 0;
  }
  if (it == files_.files.end()) return ENOENT;
  KVIST_CHECK(io.offset.value % 4096 == 0 && io.bytes.size() % 4096 == 0);
  KVIST_CHECK(io.offset.value + io.bytes.size() <= segment_bytes_);
  switch (io.kind) {
    case ssd::Io::Kind::kWrite: return Write(io);
    case ssd::Io::Kind::kSync: return Sync(pending);
    default: break;
  }
  if (Chance(faults_.read_error)) {
    ++files_.injected.errors;
    return EIO;
  }
  if (Chance(faults_.unread)) {
    ++files_.injected.read_lies;
    return 0;
  }
  std::memcpy(io.bytes.data(), it->second.bytes.data() + io.offset.value, io.bytes.size());
  if (Chance(faults_.flipped)) {
    ++files_.injected.read_lies;
    io.bytes[prng_.Below(io.bytes.size())] ^= std::byte{1} << prng_.Below(8);
  }
  return 0;
}

int SimDisk::Write(const ssd::Io& io) {
  SimFiles::File& file = files_.files[io.segment];
  const auto sectors = io.bytes.size() / SimFiles::kSector;
  const auto some = [&] { return io.bytes.first(prng_.Below(sectors) * SimFiles::kSector); };
  if (Chance(faults_.write_error)) {
    ++files_.injected.errors;
    files_.failed.insert(io.segment);
    Put(&file, io.offset.value, some());
    return EIO;
  }
  ++files_.injected.lies;
  if (Chance(faults_.dropped)) return 0;
  if (Chance(faults_.torn)) {
    Put(&file, io.offset.value, some());
    return 0;
  }
  if (Chance(faults_.misdirected)) {
    const uint64_t places = (segment_bytes_ - io.bytes.size()) / 4096 + 1;
    Put(&file, prng_.Below(places) * 4096, io.bytes);
    return 0;
  }
  --files_.injected.lies;
  Put(&file, io.offset.value, io.bytes);
  return 0;
}

void SimDisk::Put(SimFiles::File* file, uint64_t offset, std::span<const std::byte> bytes) {
  const uint64_t number = ++files_.writes;
  for (uint64_t at = 0; at < bytes.size(); at += SimFiles::kSector) {
    std::byte* const to = file->bytes.data() + offset + at;
    const auto [it, fresh] = file->unsynced.try_emplace((offset + at) / SimFiles::kSector);
    if (fresh) it->second.before.assign(to, to + SimFiles::kSector);
    it->second.written = number;
    std::memcpy(to, bytes.data() + at, SimFiles::kSector);
  }
}

int SimDisk::Sync(const Pending& pending) {
  SimFiles::File& file = files_.files[pending.io.segment];
  if (files_.forgets_syncs) return 0;
  const bool fails = Chance(faults_.sync_error);
  if (fails) {
    ++files_.injected.errors;
    files_.failed.insert(pending.io.segment);
  }
  std::erase_if(file.unsynced, [&](const auto& entry) {
    const auto& [sector, unsynced] = entry;
    if (fails && prng_.Percent(50)) {
      std::memcpy(file.bytes.data() + sector * SimFiles::kSector, unsynced.before.data(), SimFiles::kSector);
      return true;
    }
    return unsynced.written <= pending.covers;  // what came later may be lost all the same
  });
  return fails ? EIO : 0;
}

void SimDisk::Crash() {
  for (const Pending& pending : pending_) {
    if (pending.io.kind != ssd::Io::Kind::kWrite || !files_.files.contains(pending.io.segment)) continue;
    const auto sectors = pending.io.bytes.size() / SimFiles::kSector;
    Put(&files_.files[pending.io.segment], pending.io.offset.value,
        pending.io.bytes.first(prng_.Below(sectors + 1) * SimFiles::kSector));
  }
  pending_.clear();
  files_.Crash(&prng_);
}

void SimDisk::Die() {
  for (const Pending& pending : pending_) {
    const auto file = files_.files.find(pending.io.segment);
    if (pending.io.kind != ssd::Io::Kind::kWrite || file == files_.files.end()) continue;
    if (prng_.Percent(50)) Put(&file->second, pending.io.offset.value, pending.io.bytes);
  }
  pending_.clear();
}

}  // namespace kvist::test
