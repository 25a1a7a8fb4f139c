#ifndef KVIST_TESTS_SUPPORT_KVISTD_MAIN_H_
#define KVIST_TESTS_SUPPORT_KVISTD_MAIN_H_

#include <span>

#include "daemon/wiring.h"

namespace kvist::test {

// What main() of a kvistd with a test's parts does: takes `[--set SECTION.KEY=VALUE]...`, starts it, prints READY, and ends by SIGTERM.
// `program` names it in errors. The exit status is kvistd's: 1 when it can't start, 2 for wrong usage.
int RunKvistd(const char* program, std::span<char* const> arguments, daemon::Parts parts);

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_KVISTD_MAIN_H_
