#ifndef KVIST_STORAGE_BASE_UTF8_H_
#define KVIST_STORAGE_BASE_UTF8_H_

#include "absl/strings/string_view.h"

namespace kvist {

// Whether `text` is well-formed UTF-8 (RFC 3629): without overlong forms and surrogates, as protobuf and TOML want it.
bool IsUtf8(absl::string_view text);

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_UTF8_H_
