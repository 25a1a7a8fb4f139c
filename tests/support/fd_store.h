#ifndef KVIST_TESTS_SUPPORT_FD_STORE_H_
#define KVIST_TESTS_SUPPORT_FD_STORE_H_

#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kvist::test {

// A stand-in for a service manager with an fd store (sd_notify(3), FDSTORE=1): keeps the files that a kvistd hands over, and hands them
// to the next one. A kvistd that is started with Before() (DaemonProcess) takes this for its manager.
class FdStore {
 public:
  explicit FdStore(std::string dir);  // an existing one, for its socket
  ~FdStore();
  FdStore(const FdStore&) = delete;
  FdStore& operator=(const FdStore&) = delete;

  // What a shell does before it becomes kvistd.
  std::string Before() const;
  // All that was said so far is done: to be called between the end of one kvistd and the start of the next. The names, sorted.
  std::vector<std::string> Settle();
  // As when the service is stopped.
  void Forget();

 private:
  void Serve();
  bool TakeOne();
  void WriteFile();

  const std::string dir_;
  int socket_;
  int stop_[2];
  std::mutex mutex_;
  std::map<std::string, int> files_;
  std::thread thread_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_FD_STORE_H_
