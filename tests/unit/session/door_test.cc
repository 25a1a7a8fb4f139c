#include "daemon/session/door.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "daemon/session/listening_socket.h"
#include "proto/session.pb.h"
#include "storage/base/shm/frame_socket.h"
#include "tests/support/any_packet.h"
#include "tests/support/temp_dir.h"

namespace kvist::session {
namespace {

// One who stands before the door.
UniqueFd Knock(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  UniqueFd outside(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(outside.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return outside;
}

TEST_CASE("Door counts who leaves as its user's until all of it is closed") {
  const test::TempDir dir;
  const std::string path = dir.path() + "/engine.sock";
  absl::StatusOr<ListeningSocket> listening = ListenAt(path, 0600, "");
  REQUIRE(listening.ok());
  uint32_t refused = 0, closed = 0;
  Door door(std::move(listening->fd), {.guests = 8, .of_one_uid = 2},
            {.log = [](const std::string&) {},
             .refused = [&] { ++refused; },
             .close = [&](uid_t of, UniqueFd) { closed += of == ::getuid(); },
             .make_room = [](uid_t) { return false; }});
  const auto knock = [&](bool with_fd = false) {
    const UniqueFd outside = Knock(path);
    if (with_fd) test::SendAny(outside.get(), "", 2);
    bool in = false;
    door.Open([&](Door::Guest) { in = true; });
    return in;
  };
  CHECK(knock());
  CHECK(knock());
  door.Leaves();
  CHECK(!knock());
  CHECK(refused == 1);
  CHECK(closed == 0);  // by the door itself: nothing lies in it
  CHECK(!knock(/*with_fd=*/true));
  CHECK(closed == 1);
  door.Left(::getuid());
  CHECK(knock());
}

TEST_CASE("Door lets one user have half of all connections at most, also when there are to be fewer") {
  const test::TempDir dir;
  const std::string path = dir.path() + "/engine.sock";
  absl::StatusOr<ListeningSocket> listening = ListenAt(path, 0600, "");
  REQUIRE(listening.ok());
  Door door(std::move(listening->fd), {.guests = 8, .of_one_uid = 512},
            {.log = [](const std::string&) {},
             .refused = [] {},
             .close = [](uid_t, UniqueFd) {},
             .make_room = [](uid_t) { return false; }});
  std::vector<Door::Guest> guests;
  std::string why;  // the last was refused
  const auto knock = [&](uint32_t times) {
    guests.clear();
    std::vector<UniqueFd> outside;
    for (uint32_t i = 0; i < times; ++i) outside.push_back(Knock(path));
    door.Open([&](Door::Guest guest) { guests.push_back(std::move(guest)); });
    v1::DaemonFrame frame;
    const absl::StatusOr<shm::Frame> said = shm::ReceiveFrame(outside.back().get());
    why = said.ok() && frame.ParseFromString(said->bytes) ? frame.refused().message() : "";
    for (const Door::Guest& guest : guests) {
      door.Leaves();
      door.Left(guest.peer.uid);
    }
    return guests.size();
  };
  CHECK(knock(4) == 4);
  CHECK(why == "");
  CHECK(knock(8) == 4);
  CHECK_THAT(why, Catch::Contains("has 4 connections; raise session.connections_max, of which one user may have half"));
  door.SetGuestsMax(4);
  CHECK(knock(8) == 2);
  door.SetGuestsMax(1);
  CHECK(knock(8) == 1);
  door.SetGuestsMax(2000);
  CHECK(knock(60) == 60);
}

}  // namespace
}  // namespace kvist::session
