#ifndef KVIST_STORAGE_BASE_BYTE_TEXT_H_
#define KVIST_STORAGE_BASE_BYTE_TEXT_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "storage/base/units.h"

// Sizes as people write them: a count and a unit (B, KiB, MiB, GiB, TiB), "4GiB" or "4 GiB".
namespace kvist {

// Nothing when `text` is no such size, or more than 64 bits hold.
std::optional<Bytes> ParseBytes(absl::string_view text);
// Exactly, with the largest unit that divides it: "4GiB", "4097B".
std::string PrintBytes(Bytes bytes);

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_BYTE_TEXT_H_
