#include "storage/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvist {

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "kvist: impossible state: %s at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace kvist
