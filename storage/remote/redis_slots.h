#ifndef KVIST_STORAGE_REMOTE_REDIS_SLOTS_H_
#define KVIST_STORAGE_REMOTE_REDIS_SLOTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvist::remote {

// Which server of a Redis Cluster has which keys: each has some of the slots, and a key's slot is a hash of what stands in its braces. Pure; what
// servers say of it is text that nobody has checked.
inline constexpr uint16_t kRedisSlots = 16384;

// The slot of keys with `tag` in their braces: CRC16 (XMODEM), as the cluster's specification has it.
uint16_t RedisSlotOf(std::string_view tag);

// "MOVED 3999 10.0.0.2:6379", "ASK 3999 10.0.0.2:6379": another server has that slot, for good or, while it moves there, for this key.
struct RedisRedirect {
  uint16_t slot = 0;
  std::string address;  // as Endpoint::Parse has it
  bool ask = false;
};
// Of an error line of a server; `asked` is that server's host, which is meant when none is named. Nothing: it is no redirect, or names nobody.
std::optional<RedisRedirect> RedirectIn(std::string_view line, std::string_view asked);

// Slots [first, last] of a server.
struct RedisSlotRange {
  uint16_t first = 0;
  uint16_t last = 0;
  std::string address;
};
// Of what CLUSTER NODES answers: the masters' slots, as far as it makes sense, no more ranges than there are slots. `by_name`: servers that announce
// a name are called by it.
std::vector<RedisSlotRange> SlotsIn(std::string_view nodes, std::string_view asked, bool by_name);

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_REDIS_SLOTS_H_
