#ifndef KVIST_TESTS_UNIT_SSD_STORE_VICTIM_H_
#define KVIST_TESTS_UNIT_SSD_STORE_VICTIM_H_

#include <string>

#include "tests/unit/ssd/store_world.h"

// What store_victim and those who look at what it has left have in common.
namespace kvist::ssd::test {

inline StoreOptions VictimOptions(const std::string& folder) {
  StoreOptions options;
  options.directories = {folder + "/a", folder + "/b"};
  options.segment = KiB(256);  // eight chunks
  options.capacity = options.segment * 12;
  return options;
}
inline SpaceDigest VictimSpace() { return DigestOf<SpaceDigest>(4711); }

}  // namespace kvist::ssd::test

#endif  // KVIST_TESTS_UNIT_SSD_STORE_VICTIM_H_
