#ifndef KVIST_CONNECTOR_SRC_SIZED_H_
#define KVIST_CONNECTOR_SRC_SIZED_H_

#include <kvist/kvist.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace kvist::connector {

// A struct of the ABI that grows at its end, with a struct_size: its name, and the size that it had in the first version. A caller was compiled
// with some version of kvist.h, not always this library's:
//   an earlier one    the fields that it doesn't know are zero here, which means the default
//   a later one       is served as long as the fields that this library doesn't know are zero there
template <class T>
struct Grows;
template <size_t kFirstSize>
struct GrowsFrom {
  static constexpr size_t kFirst = kFirstSize;
};
#define KVIST_GROWS(type, first_size)            \
  template <>                                    \
  struct Grows<type> : GrowsFrom<first_size> {   \
    static constexpr const char* kName = #type;  \
    static_assert(sizeof(type) >= (first_size)); \
  }
KVIST_GROWS(kvist_chain_options, 32);
KVIST_GROWS(kvist_group, 40);
KVIST_GROWS(kvist_space, 96);
KVIST_GROWS(kvist_memory, 136);
KVIST_GROWS(kvist_options, 72);
KVIST_GROWS(kvist_load_args, 72);
KVIST_GROWS(kvist_store_args, 72);
KVIST_GROWS(kvist_swap_args, 80);
KVIST_GROWS(kvist_hint_args, 24);
KVIST_GROWS(kvist_result, 32);

// No version has a struct of this size: it is no size, and so much is neither read nor written.
inline constexpr size_t kSizeMost = 4096;

template <class T>
absl::Status CheckSize(size_t size) {
  if (size >= Grows<T>::kFirst && size <= kSizeMost && size % alignof(T) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Grows<T>::kName, ".struct_size is ", size, ", wanted sizeof(",
                                                 Grows<T>::kName, "), ", sizeof(T), " in this library"));
}

// What the caller passes, as this library has it. Errors: InvalidArgument  there is none, or it is of no size, or has what this library doesn't know.
template <class T>
absl::StatusOr<T> Sized(const T* from) {
  if (from == nullptr) return absl::InvalidArgumentError(absl::StrCat(Grows<T>::kName, " is missing (NULL)"));
  const size_t size = from->struct_size;
  if (absl::Status status = CheckSize<T>(size); !status.ok()) return status;
  T whole{};
  std::memcpy(&whole, from, std::min(size, sizeof whole));
  whole.struct_size = sizeof whole;
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof whole; i < size; ++i) {
    if (bytes[i] != 0) {
      return absl::InvalidArgumentError(absl::StrCat(Grows<T>::kName, " has a field at byte ", i,
                                                     " that this library (ABI version ", KVIST_ABI_VERSION,
                                                     ") doesn't know: leave it zero, or install a later libkvist"));
    }
  }
  return whole;
}

// Gives `whole` to a caller, as far as it knows its fields; those that it knows and this library doesn't are zero. `to` has a size.
template <class T>
void GiveSized(const T& whole, T* to) {
  const size_t size = to->struct_size, known = std::min(size, sizeof whole);
  std::memcpy(to, &whole, known);
  std::memset(reinterpret_cast<unsigned char*>(to) + known, 0, size - known);
  to->struct_size = size;
}

}  // namespace kvist::connector

#endif  // KVIST_CONNECTOR_SRC_SIZED_H_
