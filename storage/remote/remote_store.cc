#include "storage/remote/remote_store.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kvist::remote {

bool IsQuestion(const Batch& batch) {
  if (batch.kind == Kind::kPut || batch.kind == Kind::kRemove) return false;
  uint64_t bytes = 0;
  for (const Operation& operation : batch.operations) bytes += operation.bytes().value;
  return bytes <= kQuestionBytes.value;
}

absl::Status ValidateNames(const Batch& batch) {
  const auto is_of_name = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  if (batch.operations.empty()) return absl::InvalidArgumentError("a batch has at least one operation");
  for (const Operation& operation : batch.operations) {
    const std::string& name = operation.name;
    if (name.empty() || name.size() > kNameMax || name[0] == '.' || !std::all_of(name.begin(), name.end(), is_of_name))
      return absl::InvalidArgumentError(absl::StrCat("an object's name has 1 to ", kNameMax,
                                                     " letters, digits, '-', '_' or '.', not first a '.'; this is \"",
                                                     absl::CEscape(name.substr(0, kNameMax)), "\""));
  }
  return absl::OkStatus();
}

}  // namespace kvist::remote
