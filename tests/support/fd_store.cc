#include "tests/support/fd_store.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

namespace kvist::test {
namespace {

constexpr int kFirst = 3;  // SD_LISTEN_FDS_START
constexpr int kMost = 7;   // a shell's redirections have one digit

// The value of `name` in lines of assignments, or "".
std::string ValueOf(const std::string& message, const std::string& name) {
  const std::string lines = "\n" + message + "\n";
  const size_t at = lines.find("\n" + name + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 2;
  return lines.substr(begin, lines.find('\n', begin) - begin);
}

}  // namespace

FdStore::FdStore(std::string dir) : dir_(std::move(dir)), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir_ + "/notify";
  if (socket_ < 0 || path.size() >= sizeof address.sun_path) std::abort();
  std::memcpy(address.sun_path, path.data(), path.size());
  if (::bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) std::abort();
  if (::pipe(stop_) != 0) std::abort();
  WriteFile();
  thread_ = std::thread([this] { Serve(); });
}

FdStore::~FdStore() {
  ::close(stop_[1]);
  thread_.join();
  ::close(stop_[0]);
  ::close(socket_);
  Forget();
}

std::string FdStore::Before() const { return ". '" + dir_ + "/hand-over'"; }

std::vector<std::string> FdStore::Settle() {
  pollfd said{socket_, POLLIN, 0};
  for (int left_ms = 10'000; ::poll(&said, 1, 0) > 0; --left_ms) {
    if (left_ms == 0) std::abort();  // its thread hangs
    ::usleep(1000);
  }
  const std::lock_guard<std::mutex> lock(mutex_);  // what was taken from the socket is done, too
  std::vector<std::string> names;
  for (const auto& [name, file] : files_) names.push_back(name);
  return names;
}

void FdStore::Forget() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, file] : files_) ::close(file);
  files_.clear();
  WriteFile();
}

void FdStore::Serve() {
  while (true) {
    pollfd wanted[] = {{socket_, POLLIN, 0}, {stop_[0], 0, 0}};
    ::poll(wanted, 2, -1);
    if (wanted[1].revents != 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    while (TakeOne()) continue;
    WriteFile();
  }
}

bool FdStore::TakeOne() {
  char text[4096];
  iovec buffer{text, sizeof text};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = ::recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0) return false;
  int file = -1;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr && header->cmsg_type == SCM_RIGHTS)
    std::memcpy(&file, CMSG_DATA(header), sizeof file);
  const std::string said(text, static_cast<size_t>(size));
  const std::string name = ValueOf(said, "FDNAME");
  if (ValueOf(said, "FDSTORE") == "1" && file >= 0 && files_.size() < kMost) {
    files_[name] = file;
    return true;
  }
  if (file >= 0) ::close(file);
  if (const auto kept = files_.find(name); ValueOf(said, "FDSTOREREMOVE") == "1" && kept != files_.end()) {
    ::close(kept->second);
    files_.erase(kept);
  }
  return true;
}

void FdStore::WriteFile() {
  std::ofstream file(dir_ + "/hand-over");
  file << "export NOTIFY_SOCKET='" << dir_ << "/notify'\n";
  if (files_.empty()) return;
  std::string names;
  int fd = kFirst;
  for (const auto& [name, kept] : files_) {
    file << "exec " << fd++ << "<>/proc/" << ::getpid() << "/fd/" << kept << "\n";
    names += (names.empty() ? "" : ":") + name;
  }
  file << "export LISTEN_PID=$$ LISTEN_FDS=" << files_.size() << " LISTEN_FDNAMES='" << names << "'\n";
}

}  // namespace kvist::test
