#ifndef KVIST_DAEMON_CORE_SPACE_SPEC_H_
#define KVIST_DAEMON_CORE_SPACE_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/reuse_rule.h"
#include "storage/base/units.h"

namespace kvist::core {

// One cache group of a space: its reuse rule, and what one chunk takes in a slot of each shard.
struct GroupSpec {
  ReuseRule reuse = {};
  std::vector<Bytes> slot_bytes = {};  // [shard], each a multiple of 4 KiB
  // Neighbouring ranks whose bytes are equal (MLA under tensor parallelism): one shard, stored once by whichever comes first.
  uint32_t ranks_per_shard = 1;
  uint32_t layers = 1;  // of each shard
  Bytes layer_bytes{};  // of one layer of a shard, as it lies in a slot; for whoever keeps slots elsewhere

  Bytes payload() const { return layer_bytes * layers; }  // of a shard
  uint32_t shards() const { return static_cast<uint32_t>(slot_bytes.size()); }
  uint32_t ranks() const { return shards() * ranks_per_shard; }
  uint32_t ShardOf(Rank rank) const { return rank.value / ranks_per_shard; }
};

// What the core has to know of a space. Equal digests mean equal specs.
struct SpaceSpec {
  SpaceDigest digest;
  std::string tenant;
  std::string model;             // for people
  std::string description = {};  // for whoever keeps its chunks on disk: enough to make this spec again; nothing to the core
  std::vector<GroupSpec> groups;  // all of the same ranks

  uint32_t ranks() const { return groups.empty() ? 0 : groups[0].ranks(); }
};

}  // namespace kvist::core

#endif  // KVIST_DAEMON_CORE_SPACE_SPEC_H_
