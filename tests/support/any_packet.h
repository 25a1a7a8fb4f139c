#ifndef KVIST_TESTS_SUPPORT_ANY_PACKET_H_
#define KVIST_TESTS_SUPPORT_ANY_PACKET_H_

#include <sys/socket.h>
#include <sys/uio.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

namespace kvist::test {

// Sends a packet of any length, none too, with a descriptor or none (-1). In tests only, whose requirements it makes.
inline void SendAny(int socket, std::string bytes, int fd) {
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  }
  REQUIRE(::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_ANY_PACKET_H_
