#ifndef KVIST_TESTS_SUPPORT_SANITIZERS_H_
#define KVIST_TESTS_SUPPORT_SANITIZERS_H_

namespace kvist::test {

// What the tests were built with, for figures that a sanitizer moves: AddressSanitizer keeps freed memory for a while, ThreadSanitizer has
// megabytes for each thread, so beside them resident memory says nothing; and both take their time.
#ifndef __has_feature
#define __has_feature(feature) 0  // clang's way of telling; g++ defines __SANITIZE_*
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
inline constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_SANITIZERS_H_
