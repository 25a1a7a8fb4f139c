#ifndef KVIST_TESTS_SUPPORT_MEMORY_CGROUP_H_
#define KVIST_TESTS_SUPPORT_MEMORY_CGROUP_H_

#include <cstdint>
#include <string>

namespace kvist::test {

// A memory cgroup of the test's, below the one that the test is in; of the version that this machine has. Gone with this object, for
// which its processes have to be gone.
class MemoryCgroup {
 public:
  // `limit_bytes`: of memory, hard. Where none can be made, why() says the reason and nothing else may be called.
  explicit MemoryCgroup(uint64_t limit_bytes);
  ~MemoryCgroup();
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;

  const std::string& why() const { return why_; }  // "" when it was made
  int version() const { return version_; }
  const std::string& path() const { return path_; }
  std::string limit_file() const;
  // From where on the kernel takes memory back and slows who takes more (memory.high); v1 has no such thing, there it reclaims at the
  // limit only. Whether it was set.
  bool SetHigh(uint64_t bytes) const;
  // A shell's command that puts it, and what it becomes, into this cgroup.
  std::string Enter() const { return "echo $$ > " + path_ + "/cgroup.procs"; }
  // Puts the calling process in.
  bool EnterSelf() const;
  // Processes in it that the kernel has killed for want of memory.
  uint64_t Kills() const;

 private:
  int version_ = 0;
  std::string path_;
  std::string why_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_MEMORY_CGROUP_H_
