#include "daemon/endpoint/tls_files_in_force.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"

namespace kvist::endpoint {
namespace {

// `changed` is what its time of change shall be, in seconds.
absl::StatusOr<UniqueFd> InMemory(const std::string& text, time_t changed) {
  UniqueFd fd(::memfd_create("kvist-tls", MFD_CLOEXEC));
  if (!fd || ::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0 ||
      ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return ErrnoStatus("a file in memory for TLS", errno);
  const timespec times[] = {{changed, 0}, {changed, 0}};
  if (::futimens(fd.get(), times) != 0) return ErrnoStatus("a file in memory for TLS", errno);
  return fd;
}

std::string PathOf(const UniqueFd& fd) { return absl::StrCat("/proc/self/fd/", fd.get()); }

}  // namespace

struct TlsFilesInForce::State {
  Options options;
  TlsFiles paths;
  std::thread thread;
  // Of the thread.
  TlsTexts texts;
  UniqueFd certificate, key, ca;
  time_t changed = 0;
  std::string found;  // wrong at the last look; "" nothing

  absl::Mutex mutex;
  absl::CondVar stops;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  absl::Status trouble ABSL_GUARDED_BY(mutex);

  absl::Status PutInForce(TlsTexts next) {
    // Another time at each change, which gRPC goes by: so it sees that one of two was replaced while it read.
    const time_t now = std::max(::time(nullptr), changed + 1);
    KVIST_ASSIGN_OR_RETURN(UniqueFd next_key, InMemory(next.key, now));
    KVIST_ASSIGN_OR_RETURN(UniqueFd next_certificate, InMemory(next.certificate, now));
    KVIST_ASSIGN_OR_RETURN(UniqueFd next_ca, InMemory(next.ca, now));
    if (!key) {
      key = std::move(next_key);
      certificate = std::move(next_certificate);
      ca = std::move(next_ca);
    } else {  // under the same paths
      KVIST_CHECK(::dup3(next_ca.get(), ca.get(), O_CLOEXEC) >= 0);
      KVIST_CHECK(::dup3(next_key.get(), key.get(), O_CLOEXEC) >= 0);
      KVIST_CHECK(::dup3(next_certificate.get(), certificate.get(), O_CLOEXEC) >= 0);
    }
    texts = std::move(next);
    changed = now;
    return absl::OkStatus();
  }

  // Puts in force what can be; what can't is the error.
  absl::Status Look() {
    KVIST_ASSIGN_OR_RETURN(TlsTexts next, ReadTlsFiles(options.files, options.keys));
    // What isn't in time doesn't replace what is; where that isn't in time, either, nothing is lost.
    absl::Status late;
    if (!IsInTime(next.certificate)) {
      late = absl::FailedPreconditionError(absl::StrCat(options.keys.certificate, ": the time of the certificate in ",
                                                        options.files.certificate,
                                                        HasRunOut(next.certificate) ? " is over" : " hasn't come yet"));
      if (IsInTime(texts.certificate) && next.certificate != texts.certificate) return late;
    }
    if (!IsAnyInTime(next.ca)) {
      late.Update(absl::FailedPreconditionError(absl::StrCat(options.keys.ca, ": the time of the certificates in ",
                                                             options.files.ca, " is over, or hasn't come yet")));
      if (IsAnyInTime(texts.ca) && next.ca != texts.ca) return late;
    }
    if (next == texts) return late;
    KVIST_RETURN_IF_ERROR(PutInForce(std::move(next)));
    options.say(false, absl::StrCat(options.keys.certificate, ", ", options.keys.key, ", ", options.keys.ca,
                                    ": renewed, and in force for connections from now on"));
    return late;
  }

  void Say(const absl::Status& status) {
    const std::string wrong(status.message());
    const bool again = wrong == std::exchange(found, wrong);
    {
      const absl::MutexLock lock(&mutex);
      if (!again || status == trouble) return;
      trouble = status;
    }
    if (status.ok()) {
      options.say(false,
                  absl::StrCat(options.keys.certificate, ", ", options.keys.key, ", ", options.keys.ca, ": well again"));
    } else {
      options.say(true, absl::StrCat(wrong, "; connections are made with what was read before, as long as that is in time"));
    }
  }

  void Loop() {
    for (;;) {
      Say(Look());
      const absl::MutexLock lock(&mutex);
      const absl::Time until = MonotonicNow() + options.look_every;
      while (!stopping && MonotonicNow() < until) stops.WaitWithTimeout(&mutex, until - MonotonicNow());
      if (stopping) return;
    }
  }
};

TlsFilesInForce::TlsFilesInForce(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<TlsFilesInForce>> TlsFilesInForce::Create(Options options) {
  KVIST_CHECK(options.say != nullptr);
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  KVIST_ASSIGN_OR_RETURN(TlsTexts texts, ReadTlsFiles(state->options.files, state->options.keys));
  KVIST_RETURN_IF_ERROR(state->PutInForce(std::move(texts)));
  state->paths = {PathOf(state->certificate), PathOf(state->key), PathOf(state->ca)};
  State* raw = state.get();
  state->thread = std::thread([raw] { raw->Loop(); });
  ::pthread_setname_np(state->thread.native_handle(), "kvist-tls-files");
  return std::unique_ptr<TlsFilesInForce>(new TlsFilesInForce(std::move(state)));
}

TlsFilesInForce::~TlsFilesInForce() {
  {
    const absl::MutexLock lock(&state_->mutex);
    state_->stopping = true;
    state_->stops.Signal();
  }
  state_->thread.join();
}

const TlsFiles& TlsFilesInForce::paths() const { return state_->paths; }

absl::Status TlsFilesInForce::trouble() const {
  const absl::MutexLock lock(&state_->mutex);
  return state_->trouble;
}

}  // namespace kvist::endpoint
