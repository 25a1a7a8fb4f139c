#ifndef KVIST_DAEMON_ENDPOINT_TLS_FILES_IN_FORCE_H_
#define KVIST_DAEMON_ENDPOINT_TLS_FILES_IN_FORCE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/endpoint/tls_files.h"

namespace kvist::endpoint {

// The TLS files of a process that runs, as they were when they last could be used. gRPC would take a key for another certificate, or half a file, as
// soon as it stands there, and refuse every connection until somebody notices; so it is given copies, in memory, which are replaced when the
// files have changed and have passed CheckTlsFiles, and a certificate whose time is over, or hasn't come, replaces none that is in time.
//
// Lifecycle: Create looks at once -> the destructor, when nobody uses paths() any more. Threads: one of its own; `say` is called there. trouble from any.
class TlsFilesInForce {
 public:
  struct Options {
    TlsFiles files;
    // What an operator should know: what is wrong, once it has been so at two looks, since a renewal isn't one moment; that it is mended; and that
    // files were renewed.
    std::function<void(bool warning, const std::string& text)> say;
    absl::Duration look_every = absl::Seconds(4);
    TlsFileKeys keys = {};
  };
  // Errors: those of CheckTlsFiles, and of making files in memory.
  static absl::StatusOr<std::unique_ptr<TlsFilesInForce>> Create(Options options);
  ~TlsFilesInForce();
  TlsFilesInForce(const TlsFilesInForce&) = delete;
  TlsFilesInForce& operator=(const TlsFilesInForce&) = delete;

  // The copies, for this process alone and while this lives. Key and certificate aren't replaced in one moment, but nearly; who reads both within that
  // has to read them again, as gRPC does every second.
  const TlsFiles& paths() const;
  // Why the files that are in force aren't those that stand there, or can't be used any more; the word of `say`.
  absl::Status trouble() const;

 private:
  struct State;
  explicit TlsFilesInForce(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvist::endpoint

#endif  // KVIST_DAEMON_ENDPOINT_TLS_FILES_IN_FORCE_H_
