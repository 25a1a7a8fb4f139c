#include "daemon/session/short_slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvist::session {
namespace {

// What the kernel calls sched_attr, in its first size. Its header can't be had beside <sched.h> in glibc 2.36.
struct Attributes {
  uint32_t size = sizeof(Attributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;  // of SCHED_OTHER: the slice
  uint64_t deadline = 0;
  uint64_t period = 0;
};
static_assert(sizeof(Attributes) == 48);

bool Get(Attributes* attributes) { return ::syscall(SYS_sched_getattr, 0, attributes, sizeof *attributes, 0) == 0; }

}  // namespace

bool AskForShortSlices() {
  Attributes attributes;
  if (!Get(&attributes) || attributes.policy != SCHED_OTHER || attributes.runtime == 0) return false;
  attributes.runtime = kShortSliceNanos;
  return ::syscall(SYS_sched_setattr, 0, &attributes, 0) == 0;
}

int64_t SliceNanos() {
  Attributes attributes;
  return Get(&attributes) && attributes.policy == SCHED_OTHER ? static_cast<int64_t>(attributes.runtime) : 0;
}

}  // namespace kvist::session
