#include "daemon/warm_pool.h"

#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <new>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/core/left_index.h"
#include "daemon/session/space_description.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/pool/memory_file.h"

namespace kvist::daemon {
namespace {

constexpr uint32_t kHeaderSection = 100;  // the core's kinds are below

std::string PoolName(const std::string& id, size_t region) { return absl::StrCat("kvist-pool-", id, "-", region); }
std::string IndexName(const std::string& id, uint64_t number) { return absl::StrCat("kvist-index-", id, "-", number); }

Bytes LengthOf(int file) {
  struct stat status {};
  return ::fstat(file, &status) == 0 ? Bytes{static_cast<uint64_t>(status.st_size)} : Bytes{};
}

}  // namespace

struct WarmPool::Header {
  enum class State : uint32_t {
    kNew = 0,     // nobody has started with it
    kCounts = 1,  // it says what is whole in the pool
    kTaking = 2,  // a core is taking it over, or has died of that
    kOver = 3,    // another counts
  };
  uint32_t version = core::kImageVersion;
  std::atomic<State> state = State::kNew;
  std::atomic<bool> ended_well = false;
  int64_t started_nanos = 0;  // MonotonicNanos
  uint64_t short_lives = 0;   // in a row, of the cores before this one
  uint64_t slab_bytes = 0;
  uint64_t checksums = 0;
  uint64_t regions = 0;
  std::array<uint64_t, kRegionsMax> region_bytes{};

  explicit Header(const Shape& shape)
      : slab_bytes(shape.slab_bytes.value), checksums(shape.checksums), regions(shape.regions.size()) {
    std::transform(shape.regions.begin(), shape.regions.end(), region_bytes.begin(), [](Bytes b) { return b.value; });
  }
  bool HasShapeOf(const Header& o) const {
    return version == o.version && slab_bytes == o.slab_bytes && checksums == o.checksums && regions == o.regions &&
           region_bytes == o.region_bytes;
  }
  // With this one.
  uint64_t ShortLives() const {
    const bool brief = MonotonicNanos() - started_nanos < absl::ToInt64Nanoseconds(kShortLife);
    return brief && !ended_well ? short_lives + 1 : 0;
  }
};

absl::StatusOr<std::unique_ptr<WarmPool>> WarmPool::Open(Shape shape, FileKeeper keeper, bool may_make) {
  if (shape.regions.size() > kRegionsMax)
    return absl::InvalidArgumentError(absl::StrCat("a pool of more than ", kRegionsMax, " regions can't be kept"));
  auto warm = std::unique_ptr<WarmPool>(new WarmPool(std::move(shape), std::move(keeper)));
  const bool found = warm->FindKept();
  warm->GiveUpOthers();
  if (!found && !may_make) return nullptr;
  if (!found) KVIST_RETURN_IF_ERROR(warm->MakePool());
  KVIST_RETURN_IF_ERROR(warm->MakeIndex());
  return warm;
}

WarmPool::~WarmPool() {
  if (started_) header_->ended_well = true;
}

bool WarmPool::Trusted(const std::string& name, const Header& header) const {
  const auto give_up = [&](absl::string_view why) {
    spdlog::warn("what the last kvistd had in memory is given up ({}): {}", name, std::string(why));
    return false;
  };
  switch (header.state.load()) {
    case Header::State::kCounts: break;
    case Header::State::kTaking: return give_up("the last start has died of it");
    case Header::State::kNew:
    case Header::State::kOver: return false;
  }
  if (!header.HasShapeOf(Header(shape_)))
    return give_up("kvistd's version, pool.bytes, pool.slab_bytes or pool.verify has changed");
  if (header.ShortLives() >= kLivesMax) {
    return give_up(absl::StrCat(kLivesMax, " kvistds in a row have died of something within ",
                                absl::FormatDuration(kShortLife), " of going on with it"));
  }
  return true;
}

bool WarmPool::FindKept() {
  uint64_t newest = 0;
  for (const auto& [name, file] : keeper_.kept) {
    const std::vector<std::string> parts = absl::StrSplit(name, '-');
    uint64_t number = 0;
    if (parts.size() != 4 || parts[1] != "index" || !absl::SimpleAtoi(parts[3], &number) || number <= newest) continue;
    absl::StatusOr<pool::SectionsOfFile> sections = pool::SectionsOfFile::Map(file.get());
    if (!sections.ok() || sections->sections().empty()) continue;
    const pool::SectionsOfFile::Section& first = sections->sections().front();
    if (first.kind != kHeaderSection || first.bytes.size() != sizeof(Header)) continue;
    auto* const header = reinterpret_cast<Header*>(first.bytes.data());
    if (!Trusted(name, *header)) continue;
    bool whole = true;
    for (size_t r = 0; r < shape_.regions.size() && whole; ++r) {
      const auto memory = keeper_.kept.find(PoolName(parts[2], r));
      whole = memory != keeper_.kept.end() && LengthOf(memory->second.get()) >= shape_.regions[r];
    }
    if (!whole) continue;
    newest = number;
    id_ = parts[2];
    left_header_ = header;
    left_ = *std::move(sections);
  }
  if (newest == 0) return false;
  number_ = newest + 1;
  for (size_t r = 0; r < shape_.regions.size(); ++r) pool_.push_back(std::move(keeper_.kept.at(PoolName(id_, r))));
  return true;
}

// All but the pool that was found, and its index.
void WarmPool::GiveUpOthers() {
  for (const auto& [name, file] : keeper_.kept) {
    bool ours = left_header_ != nullptr && name == IndexName(id_, number_ - 1);
    for (size_t r = 0; r < pool_.size(); ++r) ours |= name == PoolName(id_, r);
    if (!ours) keeper_.drop(name);
  }
  keeper_.kept.clear();
}

absl::Status WarmPool::MakePool() {
  uint32_t id = 0;
  if (::getrandom(&id, sizeof id, 0) != sizeof id) return ErrnoStatus("getrandom", errno);
  id_ = absl::StrCat(absl::Hex(id, absl::kZeroPad8));
  for (size_t r = 0; r < shape_.regions.size(); ++r) {
    KVIST_ASSIGN_OR_RETURN(pool_.emplace_back(), pool::CreateMemoryFile(PoolName(id_, r), shape_.regions[r]));
  }
  pool_is_new_ = true;
  return absl::OkStatus();
}

absl::Status WarmPool::MakeIndex() {
  KVIST_ASSIGN_OR_RETURN(index_, pool::CreateMemoryFile(IndexName(id_, number_), Bytes{}));
  sections_ = std::make_unique<pool::FileSections>(index_.get());
  header_ = new (sections_->New(kHeaderSection, 0, {sizeof(Header)})) Header(shape_);
  return absl::OkStatus();
}

std::optional<core::Core::TakenOver> WarmPool::TakeOver(core::Core* core) {
  if (!left_.has_value()) return std::nullopt;
  left_header_->state = Header::State::kTaking;
  const core::LeftIndex left(left_->sections());
  std::vector<std::optional<SpaceId>> spaces;
  core::Effects none;
  for (const core::LeftIndex::Space& space : left.spaces()) {
    spaces.emplace_back();
    if (!space.has_slots) continue;  // so a restart still forgets spaces that aren't in use
    const absl::StatusOr<core::SpaceSpec> spec = session::SpaceOf(std::string(space.description));
    if (!spec.ok() || spec->digest != space.digest) continue;
    core->Handle(core::SpaceFound{*spec}, &none);
    spaces.back() = core->FindSpace(spec->digest);
  }
  const core::Core::TakenOver told = core->TakeOver(left, spaces);
  left_header_->state = Header::State::kCounts;
  return told;
}

void WarmPool::Start() {
  header_->started_nanos = MonotonicNanos();
  if (left_header_ != nullptr) header_->short_lives = left_header_->ShortLives();
  for (size_t r = 0; pool_is_new_ && r < pool_.size(); ++r) keeper_.keep(PoolName(id_, r), pool_[r].get());
  keeper_.keep(IndexName(id_, number_), index_.get());
  header_->state = Header::State::kCounts;
  started_ = true;
  if (left_header_ == nullptr) return;
  left_header_->state = Header::State::kOver;
  left_header_ = nullptr;
  left_.reset();
  keeper_.drop(IndexName(id_, number_ - 1));
}

}  // namespace kvist::daemon
