#ifndef KVIST_TESTS_SUPPORT_NUMA_NODES_H_
#define KVIST_TESTS_SUPPORT_NUMA_NODES_H_

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvist::test {

// Whether the kernel tells this process on which NUMA node its memory lies; one without NUMA doesn't, nor do some containers'.
inline bool TellsNumaNodes() {
  int node = -1;
  return ::syscall(SYS_get_mempolicy, &node, nullptr, 0, &node, MPOL_F_NODE | MPOL_F_ADDR) == 0;
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_NUMA_NODES_H_
