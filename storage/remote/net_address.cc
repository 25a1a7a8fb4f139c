#include "storage/remote/net_address.h"

#include <netdb.h>
#include <sys/un.h>

#include <cstring>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/mutex.h"

namespace kvist::remote {
namespace {

absl::StatusOr<SocketAddress> Lookup(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(endpoint.host.c_str(), absl::StrCat(endpoint.port).c_str(), &hints, &found);
  if (error != 0)
    return absl::UnavailableError(absl::StrCat("the address of \"", endpoint.host, "\": ", ::gai_strerror(error)));
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

}  // namespace

absl::StatusOr<Endpoint> Endpoint::Parse(const std::string& text) {
  Endpoint endpoint;
  if (absl::StartsWith(text, "unix:")) {
    endpoint.unix_path = text.substr(5);
    if (endpoint.unix_path.empty() || endpoint.unix_path.size() >= sizeof(sockaddr_un::sun_path))
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\": a socket's path has 1 to ", sizeof(sockaddr_un::sun_path) - 1, " bytes"));
    return endpoint;
  }
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon != std::string::npos && absl::SimpleAtoi(text.substr(colon + 1), &port) && port > 0 && port <= UINT16_MAX) {
    endpoint.port = static_cast<uint16_t>(port);
    endpoint.host = text.substr(0, colon);
    if (endpoint.host.size() > 2 && endpoint.host.front() == '[' && endpoint.host.back() == ']')
      endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
    if (!endpoint.host.empty()) return endpoint;
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no address: unix:PATH, HOST:PORT or [IPv6]:PORT"));
}

// Shared with the thread that asks, which may outlive everything else.
struct Resolver::Question {
  Mutex mutex;
  std::optional<absl::StatusOr<SocketAddress>> answer ABSL_GUARDED_BY(mutex);
  std::function<void()> wake ABSL_GUARDED_BY(mutex);  // none: nobody waits any more
};

Resolver::Resolver(Endpoint endpoint, std::function<void()> wake) : endpoint_(std::move(endpoint)), wake_(std::move(wake)) {}

Resolver::~Resolver() {
  if (question_ == nullptr) return;
  MutexLock lock(&question_->mutex);
  question_->wake = nullptr;
}

std::optional<absl::StatusOr<SocketAddress>> Resolver::Resolve() {
  if (!endpoint_.unix_path.empty()) {
    SocketAddress address;
    sockaddr_un un{};
    un.sun_family = AF_UNIX;
    std::memcpy(un.sun_path, endpoint_.unix_path.c_str(), endpoint_.unix_path.size() + 1);
    std::memcpy(&address.storage, &un, sizeof un);
    address.length = sizeof un;
    return address;
  }
  if (question_ == nullptr) {
    if (absl::StatusOr<SocketAddress> address = Lookup(endpoint_, AI_NUMERICHOST); address.ok()) return address;
    question_ = std::make_shared<Question>();
    {
      MutexLock lock(&question_->mutex);
      question_->wake = wake_;
    }
    std::thread([question = question_, endpoint = endpoint_] {
      absl::StatusOr<SocketAddress> address = Lookup(endpoint, AI_ADDRCONFIG);
      MutexLock lock(&question->mutex);
      question->answer = std::move(address);
      if (question->wake != nullptr) question->wake();  // under the lock: its owner waits for that before it goes
    }).detach();
    return std::nullopt;
  }
  std::optional<absl::StatusOr<SocketAddress>> answer;
  {
    MutexLock lock(&question_->mutex);
    answer = question_->answer;
  }
  if (answer.has_value()) question_ = nullptr;
  return answer;
}

}  // namespace kvist::remote
