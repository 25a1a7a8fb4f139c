#ifndef KVIST_STORAGE_REMOTE_S3_REQUEST_H_
#define KVIST_STORAGE_REMOTE_S3_REQUEST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "storage/remote/s3_options.h"
#include "storage/remote/sigv4.h"

namespace kvist::remote {

// What an answer's first element of that name holds, which is XML; empty: there is none.
std::string ElementOf(const std::string& xml, const std::string& name);

// One HTTP request and what is answered: the one place where libcurl's errors and S3's become statuses.
//
// Lifecycle: made -> Begin, its handle goes into a multi handle -> taken out of there, ended or not -> Begin again, or destroyed. While its handle is
//   in a multi handle, and only then, libcurl reads and writes the spans. Threads: one.
class S3HttpRequest {
 public:
  using Body = std::array<std::span<const std::byte>, 2>;  // one behind the other
  using Into = std::array<std::span<std::byte>, 2>;

  // `into`: where the answer of a GET goes; what is answered otherwise is kept as text, 64 KiB of it at most.
  S3HttpRequest(const S3Options* options, const S3Place* place, S3Request request, Body body, Into into);
  ~S3HttpRequest();
  S3HttpRequest(const S3HttpRequest&) = delete;
  S3HttpRequest& operator=(const S3HttpRequest&) = delete;

  // A CURL*, signed as of now; the first time hashes the body, about a millisecond per 2 MiB, so that others are on their way meanwhile.
  // `time_max`: it is ended then, as a failed one; zero: its owner sees to that.
  void* Begin(absl::Duration time_max);
  void* handle() const { return handle_; }

  // After its end, which libcurl said with this CURLcode. NotFound: there is nothing of that name. Unavailable: try again, or later.
  absl::Status StatusOf(int code) const;
  long http() const { return http_; }
  uint64_t received() const { return received_; }           // bytes of the answer
  std::optional<uint64_t> total() const { return total_; }  // of the object, of which a range was asked
  bool too_long() const { return too_long_; }               // there was more than `into` has room for
  const std::string& etag() const { return etag_; }
  const std::string& text() const { return text_; }

 private:
  static size_t OnWrite(char* data, size_t size, size_t count, void* self);
  static size_t OnRead(char* data, size_t size, size_t count, void* self);
  static int OnSeek(void* self, int64_t offset, int origin);
  static size_t OnHeader(char* data, size_t size, size_t count, void* self);

  const S3Options* const options_;
  const S3Place* const place_;
  S3Request request_;
  const Body body_;
  const Into into_;
  void* handle_ = nullptr;
  void* headers_ = nullptr;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  long http_ = 0;
  std::optional<uint64_t> total_;
  bool too_long_ = false;
  std::string etag_;
  std::string text_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_S3_REQUEST_H_
