#ifndef KVIST_TESTS_SUPPORT_KEPT_SECTIONS_H_
#define KVIST_TESTS_SUPPORT_KEPT_SECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "storage/pool/sections.h"

namespace kvist::test {

// Sections on the heap that the next core finds when the one that made them is gone.
class KeptSections final : public pool::Sections {
 public:
  std::byte* New(uint32_t kind, uint32_t detail, Bytes bytes) override {
    std::byte* const memory = heap_.New(kind, detail, bytes);
    sections_.push_back({kind, detail, {memory, bytes.value}});
    return memory;
  }
  const std::vector<pool::SectionsOfFile::Section>& sections() const { return sections_; }

 private:
  pool::HeapSections heap_;
  std::vector<pool::SectionsOfFile::Section> sections_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_KEPT_SECTIONS_H_
