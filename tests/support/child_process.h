#ifndef KVIST_TESTS_SUPPORT_CHILD_PROCESS_H_
#define KVIST_TESTS_SUPPORT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvist::test {

// A process forked from the test: does `work` and exits with what that returns (99 when it throws), or aborts without a core. It
// ends with this object, and, however the test ends, with the thread that made it: nothing is left behind.
//
// Threads: one. Fork before the test has threads that take locks which `work` needs.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<int()>& work);
  ChildProcess(ChildProcess&& from) noexcept : pid_(std::exchange(from.pid_, -1)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess() { Kill(); }

  pid_t pid() const { return pid_; }          // negative once its end was told
  void Signal(int number) const;              // SIGSTOP: returns when it stands
  int Wait();                                 // how it has ended: its exit status, or minus the signal
  std::optional<int> Ended();                 // the same, if it has
  std::optional<int> Kill();                  // by SIGKILL, and waits; nothing when its end was told before
  static constexpr int kCouldNotBecome = 90;  // exits of BecomeUser

 private:
  pid_t pid_ = -1;
};

// How a child that does `work` ends.
inline int InChild(const std::function<int()>& work) { return ChildProcess(work).Wait(); }

// In a child: goes to `dir` and becomes another user for good, in `group` and these other groups only; exits with kCouldNotBecome if it
// can't. From then on sockets in `dir` have relative names: the user may not be let into what is above it.
void BecomeUser(const std::string& dir, uid_t user, gid_t group, const std::vector<gid_t>& groups = {});

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_CHILD_PROCESS_H_
