#include "daemon/metrics/http_port.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"

namespace kvist::metrics {
namespace {

// A request without its Range headers: httplib would copy the answer for each range that one names, thousands of times if need be. Figures are
// taken whole.
std::string WithoutRanges(const std::string& request) {
  std::string rest;
  for (const absl::string_view line : absl::StrSplit(request, '\n')) {
    if (absl::StartsWithIgnoreCase(line, "range:")) continue;
    absl::StrAppend(&rest, rest.empty() ? "" : "\n", line);
  }
  return rest;
}

constexpr size_t kThreads = 4;  // a scraper, a prober, and two people
constexpr absl::Duration kPatience = absl::Seconds(2);
// What a caller on a busy machine may need from connecting to asking. A kernel's queue of kBacklog that says nothing is worked off in
// kBacklog / kConnectionsMax of these, within the second that a probe waits.
constexpr absl::Duration kGrace = absl::Milliseconds(200);
constexpr size_t kConnectionsMax = 256;
constexpr size_t kRequestBytesMax = size_t{1} << 14;  // httplib takes 8 KiB of path, and a browser brings cookies
constexpr std::string_view kEndOfHead = "\r\n\r\n";
constexpr int kBacklog = 1024;  // httplib's is 5: the sixth of a moment would come a second later
constexpr int kAcceptedAtOnce = 64;
constexpr absl::Duration kDeaf = absl::Milliseconds(100);

// A request that is there, for httplib to read, and what it answers.
class Exchange : public httplib::Stream {
 public:
  explicit Exchange(const std::string& request) : request_(request) {}
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override {
    const size_t n = std::min(size, request_.size() - read_);
    std::memcpy(to, request_.data() + read_, n);
    read_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, size_t size) override {
    answer.append(from, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }

  std::string answer;

 private:
  const std::string& request_;
  size_t read_ = 0;
};

std::string HostOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    return std::string(reinterpret_cast<const char*>(&in), sizeof in);
  }
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return std::string(reinterpret_cast<const char*>(&in6), sizeof in6);
}

bool ForNow(int error) { return error == EAGAIN || error == EINTR; }

void Ring(int event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event, &one, sizeof one);
}

}  // namespace

void HttpPort::Start() {
  listening_ = UniqueFd(svr_sock_.load());
  ::fcntl(listening_.get(), F_SETFL, O_NONBLOCK);
  ::listen(listening_.get(), kBacklog);
  news_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  KVIST_CHECK(listening_ && news_);
  answerers_ = std::make_unique<httplib::ThreadPool>(kThreads);
  thread_ = std::thread([this] { Loop(); });
  ::pthread_setname_np(thread_.native_handle(), "kvist-metrics");
}

HttpPort::~HttpPort() {
  if (thread_.joinable()) {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    Ring(news_.get());
    thread_.join();
    answerers_->shutdown();
  } else if (svr_sock_ != INVALID_SOCKET) {
    ::close(svr_sock_);
  }
}

void HttpPort::Loop() {
  while (true) {
    const bool stopping = TakeAnswers();
    DropLate(stopping);
    if (stopping && connections_.empty()) return;
    Wait(!stopping);
  }
}

// Until something happens or is late; then does what can be done.
void HttpPort::Wait(bool open) {
  const absl::Time now = MonotonicNow();
  const bool hears = open && now >= deaf_until_ && answering_ < kConnectionsMax;
  absl::Time next = open && now < deaf_until_ ? deaf_until_ : absl::InfiniteFuture();
  std::vector<pollfd> fds{{news_.get(), POLLIN, 0}, {hears ? listening_.get() : -1, POLLIN, 0}};
  std::vector<uint64_t> numbers;
  for (const auto& [number, connection] : connections_) {
    next = std::min(next, connection.deadline);
    if (connection.stage == Stage::kAnswering) continue;
    short events = connection.said_all ? 0 : POLLIN;
    if (connection.stage == Stage::kTaking) events |= POLLOUT;
    fds.push_back({connection.socket.get(), events, 0});
    numbers.push_back(number);
  }
  // A millisecond more, so that what it waits for is late and not nearly so.
  const int64_t patience = absl::ToInt64Milliseconds(std::min(next - now, absl::Hours(1))) + 1;
  if (::poll(fds.data(), fds.size(), static_cast<int>(patience)) <= 0) return;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (fds[i + 2].revents != 0 && !GoOn(numbers[i])) connections_.erase(numbers[i]);
  }
  if (fds[1].revents != 0) Accept();
}

void HttpPort::Accept() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    if (connections_.size() >= kConnectionsMax && !MakeRoom()) return;
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    UniqueFd socket(::accept4(listening_.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      // One that can't be accepted would wake the thread for ever.
      if (!ForNow(errno) && errno != ECONNABORTED) deaf_until_ = MonotonicNow() + kDeaf;
      return;
    }
    const uint64_t number = next_number_++;
    Connection& connection = connections_[number];
    connection.socket = std::move(socket);
    connection.host = HostOf(address);
    connection.came = MonotonicNow();
    connection.deadline = connection.came + kPatience;
    // Most have asked when they are accepted: those can't be pushed out any more.
    if (!GoOn(number)) connections_.erase(number);
  }
}

// False: all are being answered, or still have their grace.
bool HttpPort::MakeRoom() {
  std::unordered_map<std::string, size_t> of_host;
  for (const auto& [number, connection] : connections_) {
    if (connection.stage != Stage::kAnswering) ++of_host[connection.host];
  }
  const auto most = std::max_element(of_host.begin(), of_host.end(), [](auto& a, auto& b) { return a.second < b.second; });
  if (most == of_host.end()) return false;
  const auto oldest = std::find_if(connections_.begin(), connections_.end(), [&](const auto& entry) {
    return entry.second.stage != Stage::kAnswering && entry.second.host == most->first;
  });
  deaf_until_ = oldest->second.came + kGrace;
  if (MonotonicNow() < deaf_until_) return false;
  CutOff(oldest->second);
  connections_.erase(oldest);
  return true;
}

// The kernel would keep what wasn't taken for minutes more.
void HttpPort::CutOff(const Connection& connection) {
  const linger at_once{1, 0};
  if (connection.stage == Stage::kTaking)
    ::setsockopt(connection.socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

// Reads and writes what it can without waiting. False: the connection is over.
bool HttpPort::GoOn(uint64_t number) {
  Connection& connection = connections_.at(number);
  if (!connection.said_all && !Hear(&connection)) return false;
  switch (connection.stage) {
    case Stage::kAsking: {
      const bool whole = connection.bytes.find(kEndOfHead) != std::string::npos;
      if (!whole && !connection.said_all && connection.bytes.size() < kRequestBytesMax) return true;
      if (connection.bytes.empty()) return false;
      // What isn't whole httplib refuses.
      connection.stage = Stage::kAnswering;
      connection.deadline = absl::InfiniteFuture();  // the node's time, not the caller's
      ++answering_;
      answerers_->enqueue([this, number, request = std::move(connection.bytes)] { Answer(number, request); });
      connection.bytes.clear();
      return true;
    }
    case Stage::kAnswering: return true;
    case Stage::kTaking: {
      const ssize_t n = ::send(connection.socket.get(), connection.bytes.data(), connection.bytes.size(), MSG_NOSIGNAL);
      if (n < 0) return ForNow(errno);
      connection.bytes.erase(0, static_cast<size_t>(n));
      if (!connection.bytes.empty()) return true;
      connection.stage = Stage::kLeaving;
      ::shutdown(connection.socket.get(), SHUT_WR);
      return !connection.said_all;
    }
    // A close with something unread would be a reset, which may overtake the answer.
    case Stage::kLeaving: return !connection.said_all;
  }
  return false;
}

// Reads some of what has come. False: the caller is gone.
bool HttpPort::Hear(Connection* connection) {
  char part[4096];
  const ssize_t n = ::recv(connection->socket.get(), part, sizeof part, 0);
  if (n < 0) return ForNow(errno);
  if (n == 0) connection->said_all = true;
  if (connection->stage == Stage::kAsking) connection->bytes.append(part, static_cast<size_t>(n));
  return true;
}

// On a thread of the answerers.
void HttpPort::Answer(uint64_t number, const std::string& request) {
  const std::string whole = WithoutRanges(request);
  Exchange exchange(whole);
  bool closed = false;
  process_request(exchange, /*close_connection=*/true, closed, nullptr);
  {
    absl::MutexLock lock(&mutex_);
    answers_.emplace_back(number, std::move(exchange.answer));
  }
  Ring(news_.get());
}

// Whether the port stops.
bool HttpPort::TakeAnswers() {
  uint64_t rings = 0;
  [[maybe_unused]] const ssize_t read = ::read(news_.get(), &rings, sizeof rings);
  std::vector<std::pair<uint64_t, std::string>> answers;
  bool stopping = false;
  {
    absl::MutexLock lock(&mutex_);
    answers.swap(answers_);
    stopping = stopping_;
  }
  for (auto& [number, answer] : answers) {
    --answering_;
    Connection& connection = connections_.at(number);
    connection.stage = Stage::kTaking;
    connection.deadline = MonotonicNow() + kPatience;
    connection.bytes = std::move(answer);
    if (!GoOn(number)) connections_.erase(number);
  }
  return stopping;
}

void HttpPort::DropLate(bool stopping) {
  const absl::Time now = MonotonicNow();
  std::erase_if(connections_, [&](const auto& entry) {
    const Connection& connection = entry.second;
    if (stopping && (connection.stage == Stage::kAsking || connection.stage == Stage::kLeaving)) return true;
    if (now < connection.deadline) return false;
    CutOff(connection);
    return true;
  });
}

}  // namespace kvist::metrics
