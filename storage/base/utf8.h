#ifndef KVIST_STORAGE_BASE_UTF8_H_
#define KVIST_STORAGE_BASE_UTF8_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace kvist {

// Whether `text` is well-formed UTF-8 (RFC 3629): without overlong forms and surrogates, as protobuf and TOML want it.
bool IsUtf8(absl::string_view text);

// How many bytes of `text`, at `at`, are a control character that terminals heed: U+0000 to U+001F, U+007F, or one of U+0080 to U+009F, two bytes;
// 0: none is there.
size_t ControlAt(absl::string_view text, size_t at);

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_UTF8_H_
