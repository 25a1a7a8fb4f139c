#include "storage/pool/sections.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::pool {
namespace {

constexpr uint64_t kMagic = 0x3143'4553'5453'564b;  // "KVSTSEC1"

struct Header {
  std::atomic<uint64_t> magic;  // written last
  uint64_t bytes;               // of the section, which follows
  uint64_t number;              // from 0
  uint32_t kind;
  uint32_t detail;
};
static_assert(sizeof(Header) <= kSectionAlign.value);

}  // namespace

void HeapSections::Freed::operator()(std::byte* memory) const { std::free(memory); }

std::byte* HeapSections::New(uint32_t, uint32_t, Bytes bytes) {
  // Large ones come as fresh pages, which cost nothing until they are used.
  void* const memory = std::calloc(1, (bytes + kSectionAlign).value);
  KVIST_CHECK(memory != nullptr);
  auto* start = static_cast<std::byte*>(memory);
  sections_.emplace_back(start);
  const uint64_t past = reinterpret_cast<uintptr_t>(start) % kSectionAlign.value;
  return past == 0 ? start : start + (kSectionAlign.value - past);
}

std::byte* FileSections::New(uint32_t kind, uint32_t detail, Bytes bytes) {
  KVIST_CHECK(bytes <= kSectionMax);
  const Bytes needed = kSectionAlign + AlignUp(bytes, kSectionAlign);
  if (used_ + needed > kWindow) {
    const Bytes length = kWindow * (windows_.size() + 1);
    KVIST_CHECK(::ftruncate(file_, static_cast<off_t>(length.value)) == 0);
    absl::StatusOr<Mapping> window =
        Mapping::Create(file_, kWindow, Mapping::Access::kReadWrite, ByteOffset{(length - kWindow).value});
    KVIST_CHECK(window.ok());
    windows_.push_back(*std::move(window));
    used_ = Bytes{};
  }
  std::byte* const at = windows_.back().data() + used_.value;
  used_ += needed;
  auto* const header = reinterpret_cast<Header*>(at);
  header->bytes = bytes.value;
  header->number = made_++;
  header->kind = kind;
  header->detail = detail;
  header->magic.store(kMagic, std::memory_order_release);
  return at + kSectionAlign.value;
}

absl::StatusOr<SectionsOfFile> SectionsOfFile::Map(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return ErrnoStatus("fstat of an index that was kept", errno);
  SectionsOfFile read;
  const Bytes length = FileSections::kWindow * (Bytes{static_cast<uint64_t>(status.st_size)} / FileSections::kWindow);
  if (length == Bytes{}) return read;
  KVIST_ASSIGN_OR_RETURN(read.mapping_, Mapping::Create(file, length, Mapping::Access::kReadWrite));
  for (Bytes window{}; window < length; window += FileSections::kWindow) {
    for (Bytes at{}; at + kSectionAlign < FileSections::kWindow;) {
      std::byte* const start = read.mapping_.data() + (window + at).value;
      const auto* const header = reinterpret_cast<const Header*>(start);
      const Bytes left = FileSections::kWindow - at - kSectionAlign;
      if (header->magic.load(std::memory_order_acquire) != kMagic || header->bytes > left.value) break;
      if (header->number != read.sections_.size()) return read;
      read.sections_.push_back({header->kind, header->detail, {start + kSectionAlign.value, header->bytes}});
      at += kSectionAlign + AlignUp(Bytes{header->bytes}, kSectionAlign);
    }
  }
  return read;
}

}  // namespace kvist::pool
