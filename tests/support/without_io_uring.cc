// Becomes the kvistd beside it, to which the kernel refuses io_uring, as Docker's default profile does.
//
// usage: kvistd_without_io_uring ARGUMENT...        set KVISTD to it, see daemon_process.h
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string>

#include "tests/support/daemon_process.h"

int main(int, char** argv) {
  std::array<sock_filter, 4> filter{sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                    sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                                    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                                    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{filter.size(), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::perror("prctl");
    return 1;
  }
  const std::string kvistd = kvist::test::BinDir() + "/kvistd";
  ::execv(kvistd.c_str(), argv);
  std::perror(kvistd.c_str());
  return 1;
}
