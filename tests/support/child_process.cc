#include "tests/support/child_process.h"

#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace kvist::test {
namespace {

// The test may have ended before this was said; then nobody would ever end the child.
void EndWith(pid_t test) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != test) ::_exit(0);
}

int HowEnded(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status); }

}  // namespace

ChildProcess::ChildProcess(const std::function<int()>& work) {
  const pid_t test = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) {
    std::perror("fork");
    std::abort();
  }
  if (pid_ > 0) return;
  EndWith(test);
  std::signal(SIGABRT, SIG_DFL);  // Catch2's says what the test did
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  int end = 99;
  try {
    end = work();
  } catch (...) {}
  ::_exit(end);
}

void ChildProcess::Signal(int number) const {
  if (pid_ <= 0) return;  // it has ended; -1 would be every process that there is
  ::kill(pid_, number);
  int status = 0;
  if (number == SIGSTOP) ::waitpid(pid_, &status, WUNTRACED);
}

int ChildProcess::Wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}
  pid_ = -1;
  return HowEnded(status);
}

std::optional<int> ChildProcess::Ended() {
  int status = 0;
  if (pid_ < 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  return HowEnded(status);
}

std::optional<int> ChildProcess::Kill() {
  if (pid_ < 0) return std::nullopt;
  ::kill(pid_, SIGKILL);
  return Wait();
}

void BecomeUser(const std::string& dir, uid_t user, gid_t group, const std::vector<gid_t>& groups) {
  const pid_t test = ::getppid();
  if (::chdir(dir.c_str()) != 0 || ::setgroups(groups.size(), groups.data()) != 0 || ::setresgid(group, group, group) != 0 ||
      ::setresuid(user, user, user) != 0) {
    std::perror("becoming another user");
    ::_exit(ChildProcess::kCouldNotBecome);
  }
  EndWith(test);  // a change of users has the kernel forget it
}

}  // namespace kvist::test
