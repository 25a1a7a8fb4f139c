#ifndef KVIST_EXAMPLES_TINYLLM_RECORD_H_
#define KVIST_EXAMPLES_TINYLLM_RECORD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tinyllm {

// What a run leaves for the next process to compare with: raw logits, not a digest of them, so that a difference can be
// looked at.
struct Record {
  struct Phase {
    std::string name;       // IsPhaseName
    double first_token_ms;  // time to first token
  };
  static constexpr size_t kPhasesMax = 16;
  struct Entry {
    std::string name;           // of the request, one line
    std::vector<Phase> phases;  // at most kPhasesMax
    std::vector<float> logits;
  };
  std::string revision;  // of the model, one word
  std::vector<Entry> entries;
};

// Whether a phase may be called so: letters, digits, _ and -, at least one of them.
bool IsPhaseName(std::string_view name);

// Files: a line "tinyllm-record 1 <revision> <entries>", then for each entry a line with its name, a line "<phases>
// <floats>", a line "<name> <ms>" for each phase, and the floats as they are in memory.
// Errors: Unavailable: the file can't be written or read; InvalidArgument: it isn't a record.
absl::Status WriteRecord(const Record& record, const std::string& path);
absl::StatusOr<Record> ReadRecord(const std::string& path);

// Equal bit for bit; a NaN equals itself and 0 differs from -0.
bool SameBits(const std::vector<float>& a, const std::vector<float>& b);
// 64 bits of the bits, to look at. Source: FNV-1a over the numbers' bits.
uint64_t DigestOf(const std::vector<float>& logits);

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_RECORD_H_
