#ifndef KVIST_STORAGE_POOL_SECTIONS_H_
#define KVIST_STORAGE_POOL_SECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/mapping.h"
#include "storage/base/units.h"

namespace kvist::pool {

// Where tables that only grow have their memory: section by section, each zeroed, where it is for as long as this lives.
//
// `kind` and `detail` are the owner's: by them a later reader tells what a section holds. Threads: one.
class Sections {
 public:
  virtual ~Sections() = default;
  // Aligned to kSectionAlign. Without memory for it the process ends, as for any other small allocation.
  virtual std::byte* New(uint32_t kind, uint32_t detail, Bytes bytes) = 0;
};

inline constexpr Bytes kSectionAlign{64};

// Sections that end with the process.
class HeapSections final : public Sections {
 public:
  std::byte* New(uint32_t kind, uint32_t detail, Bytes bytes) override;

 private:
  struct Freed {
    void operator()(std::byte* memory) const;
  };
  std::vector<std::unique_ptr<std::byte, Freed>> sections_;
};

// Sections in a file of memory: whoever has a descriptor of it finds them as they were left, also when this process was killed between
// any two instructions.
//
//   window of 64 MiB = | header 64 B | section | header | section | ... | zeros |     a section never crosses a window
class FileSections final : public Sections {
 public:
  static constexpr Bytes kWindow = MiB(64);
  static constexpr Bytes kSectionMax = kWindow - kSectionAlign;

  // In an empty file, which it doesn't own: `file` stays open as long as this lives.
  explicit FileSections(int file) : file_(file) {}
  std::byte* New(uint32_t kind, uint32_t detail, Bytes bytes) override;

 private:
  int file_;
  std::vector<Mapping> windows_;
  Bytes used_ = kWindow;  // of the last window
  uint64_t made_ = 0;
};

// What FileSections has left in a file, in the order in which it was made. Any bytes may lie there: it ends where the next section isn't.
class SectionsOfFile {
 public:
  struct Section {
    uint32_t kind = 0;
    uint32_t detail = 0;
    std::span<std::byte> bytes;
  };
  // Errors: those of fstat and mmap.
  static absl::StatusOr<SectionsOfFile> Map(int file);

  const std::vector<Section>& sections() const { return sections_; }

 private:
  Mapping mapping_;
  std::vector<Section> sections_;
};

}  // namespace kvist::pool

#endif  // KVIST_STORAGE_POOL_SECTIONS_H_
