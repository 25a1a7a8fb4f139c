#ifndef KVIST_TESTS_UNIT_REMOTE_REDIS_KEYS_H_
#define KVIST_TESTS_UNIT_REMOTE_REDIS_KEYS_H_

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/remote/redis_connection.h"
#include "tests/support/redis_server.h"

namespace kvist::remote {

// The key of a part of the object whose first key this is, as it lies there now.
inline std::string PartKey(const test::RedisServer& server, const std::string& first, int part) {
  const std::string reply = server.Command({"GETRANGE", first, "0", "23"});  // "$24\r\n", the bytes
  REQUIRE(reply.size() >= 5 + sizeof(RedisPrefix));
  RedisPrefix prefix;
  std::memcpy(&prefix, reply.data() + 5, sizeof prefix);
  return absl::StrCat(first, ":", absl::Hex(prefix.tag, absl::kZeroPad16), ":", part);
}

// How many keys don't expire: ":N\r\n".
inline std::string LastingKeys(const test::RedisServer& server) {
  return server.Command({"EVAL",
                         "local n = 0; for _, k in ipairs(redis.call('KEYS', '*')) do "
                         "if redis.call('PTTL', k) == -1 then n = n + 1 end end; return n",
                         "0"});
}

}  // namespace kvist::remote

#endif  // KVIST_TESTS_UNIT_REMOTE_REDIS_KEYS_H_
