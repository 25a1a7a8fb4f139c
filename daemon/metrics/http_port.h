#ifndef KVIST_DAEMON_METRICS_HTTP_PORT_H_
#define KVIST_DAEMON_METRICS_HTTP_PORT_H_

#include <httplib.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/unique_fd.h"

namespace kvist::metrics {

// httplib's server, whose callers keep no thread waiting: one thread does all that a caller may be slow at, and a few others answer requests
// that are there. httplib reads and answers them; here is only what carries their bytes.
//
// Connection: kAsking -> kAnswering -> kTaking -> kLeaving -> closed. It is closed kPatience after it came unless its request is there, and
//   kPatience after its answer was there unless that has been taken.
// Bounds: kConnectionsMax; for one more the oldest that asks, takes or leaves is closed, of the host that has the most, once it had kGrace;
//   until then newcomers wait in the kernel, where they can ask already. So somebody who asks within kGrace is answered however many others
//   don't. A request is at most kRequestBytesMax; of what comes after its head nothing is read.
// Lifecycle: routes -> bind_to_port or bind_to_any_port -> Start -> the destructor, which waits for those that are being answered.
// Threads: as httplib::Server; handlers are called on several. listen, listen_after_bind and stop are never called.
class HttpPort : public httplib::Server {
 public:
  HttpPort() = default;
  ~HttpPort() override;
  HttpPort(const HttpPort&) = delete;
  HttpPort& operator=(const HttpPort&) = delete;

  void Start();

 private:
  enum class Stage { kAsking, kAnswering, kTaking, kLeaving };
  struct Connection {
    UniqueFd socket;
    std::string host;  // its address's bytes
    Stage stage = Stage::kAsking;
    absl::Time came;
    absl::Time deadline;
    std::string bytes;      // kAsking: what has come; kTaking: what has not been taken
    bool said_all = false;  // it won't send any more
  };

  void Loop();
  void Wait(bool open);
  void Accept();
  bool MakeRoom();
  static void CutOff(const Connection& connection);
  bool GoOn(uint64_t number);
  static bool Hear(Connection* connection);
  void Answer(uint64_t number, const std::string& request);
  bool TakeAnswers();
  void DropLate(bool stopping);

  UniqueFd listening_;
  UniqueFd news_;  // an eventfd: answers_ or stopping_
  std::unique_ptr<httplib::ThreadPool> answerers_;
  std::thread thread_;

  absl::Mutex mutex_;
  std::vector<std::pair<uint64_t, std::string>> answers_ ABSL_GUARDED_BY(mutex_);  // of connections; bounded by those
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // The thread's own.
  std::map<uint64_t, Connection> connections_;  // by number: the oldest is first
  uint64_t next_number_ = 0;
  size_t answering_ = 0;                          // how many of them are kAnswering
  absl::Time deaf_until_ = absl::InfinitePast();  // to newcomers: there was no descriptor for one, or no room
};

}  // namespace kvist::metrics

#endif  // KVIST_DAEMON_METRICS_HTTP_PORT_H_
