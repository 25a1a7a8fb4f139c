#ifndef KVIST_STORAGE_BASE_CHECK_H_
#define KVIST_STORAGE_BASE_CHECK_H_

// Stops the process when something impossible has happened: a cache may lose data, never lie.
// Always on; for errors that can be expected use absl::Status.
#define KVIST_CHECK(condition)                                              \
  (__builtin_expect(static_cast<bool>(condition), 1) ? static_cast<void>(0) \
                                                     : ::kvist::CheckFailed(#condition, __FILE__, __LINE__))

namespace kvist {
// Prints what failed and where to stderr, then aborts.
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);
}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_CHECK_H_
