#include "storage/remote/redis_slots.h"

#include <catch2/catch.hpp>

namespace kvist::remote {
namespace {

TEST_CASE("A key's slot is what the cluster's specification says") {
  CHECK(RedisSlotOf("123456789") == 0x31C3);  // the check value of CRC16/XMODEM, below 16384
  CHECK(RedisSlotOf("") == 0);
  CHECK(RedisSlotOf("foo") == 12182);  // redis-cli CLUSTER KEYSLOT
  CHECK(RedisSlotOf("user1000") == 3443);
}

TEST_CASE("A redirect names who has a slot, and whether for good") {
  const auto moved = RedirectIn("MOVED 3999 10.0.0.2:6381", "asked");
  REQUIRE(moved.has_value());
  CHECK(moved->slot == 3999);
  CHECK(moved->address == "10.0.0.2:6381");
  CHECK_FALSE(moved->ask);
  const auto ask = RedirectIn("ASK 0 host.example:6381", "asked");
  REQUIRE(ask.has_value());
  CHECK(ask->address == "host.example:6381");
  CHECK(ask->ask);
  CHECK(RedirectIn("MOVED 16383 ::1:6379", "asked")->address == "[::1]:6379");
  CHECK(RedirectIn("MOVED 1 :6379", "asked")->address == "asked:6379");  // the same host
  CHECK(RedirectIn("MOVED 1 :6379", "fe80::1")->address == "[fe80::1]:6379");
}

TEST_CASE("What is no redirect, or leads nowhere, is none") {
  for (const char* const line :
       {"", "MOVED", "MOVED 1", "MOVED 1 2", "MOVED 1 host:0", "MOVED 1 host:65536", "MOVED 1 host:port", "MOVED 1 ?:6379",
        "MOVED 16384 host:1", "MOVED -1 host:1", "MOVED x host:1", "MOVED 1 host:1 more", "MOVED  1 host:1",
        "moved 1 host:1", "ERR MOVED 1 host:1", "MOVED 1 unix:/run/redis.sock", "MOVED 1 :6379", "ASKING 1 host:1"}) {
    INFO(line);
    CHECK_FALSE(RedirectIn(line, "").has_value());
  }
}

TEST_CASE("CLUSTER NODES says which master has which slots") {
  const auto ranges = SlotsIn(
      "07c37d 127.0.0.1:30004@31004,host4 slave e7d1 0 1426238317239 4 connected\n"
      "67ed2d 127.0.0.1:30002@31002,host2,shard-id=69b master - 0 1426238316232 2 connected 5461-10922 [93->-07c37d]\n"
      "292f8b ::1:30003@31003 master - 0 1426238318243 3 connected 10923-16383\r\n"
      "e7d1ee :30001@31001,host1 myself,master - 0 0 1 connected 0-100 5460 [5460-<-67ed2d]\n"
      "000000 :0@0 master,noaddr - 0 0 1 disconnected 200-300\n"
      "000001 10.0.0.9:7000@17000 master - 0 0 1 connected 9-1 x-3 16384 7-99999\n"
      "what is this\n",
      "10.0.0.1", false);
  REQUIRE(ranges.size() == 4);
  CHECK((ranges[0].first == 5461 && ranges[0].last == 10922 && ranges[0].address == "127.0.0.1:30002"));
  CHECK((ranges[1].first == 10923 && ranges[1].last == 16383 && ranges[1].address == "[::1]:30003"));
  CHECK((ranges[2].first == 0 && ranges[2].last == 100 && ranges[2].address == "10.0.0.1:30001"));
  CHECK((ranges[3].first == 5460 && ranges[3].last == 5460 && ranges[3].address == "10.0.0.1:30001"));
}

TEST_CASE("Servers that announce a name are called by it where certificates name them") {
  const char* const nodes =
      "1 10.0.0.2:30002@31002,host2,shard-id=69b master - 0 0 2 connected 0-1\n"
      "2 10.0.0.3:30003@31003, master - 0 0 2 connected 2-3\n"
      "3 10.0.0.4:30004@31004 master - 0 0 2 connected 4-5\n";
  const auto ranges = SlotsIn(nodes, "asked", true);
  REQUIRE(ranges.size() == 3);
  CHECK(ranges[0].address == "host2:30002");
  CHECK(ranges[1].address == "10.0.0.3:30003");
  CHECK(ranges[2].address == "10.0.0.4:30004");
  CHECK(SlotsIn("", "asked", true).empty());
}

}  // namespace
}  // namespace kvist::remote
