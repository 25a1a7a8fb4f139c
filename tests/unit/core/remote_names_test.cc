#include "daemon/core/remote_names.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <vector>

namespace kvist::core {
namespace {

RemoteNames::Name NameOf(uint8_t n) {
  ChunkKey key;
  key.bytes[0] = n;
  return {SpaceId{1}, key};
}

TEST_CASE("a name will be forgotten as long as something wants it so") {
  RemoteNames names;
  const RemoteNames::Name name = NameOf(1);
  CHECK_FALSE(names.WillForget(name));
  names.ForgetBegan(name);
  names.ForgetBegan(name);
  names.ForgetEnded(name);
  CHECK(names.WillForget(name));
  CHECK_FALSE(names.IsBeingCleared(name));
  names.ClearBegan(name);
  names.ForgetEnded(name);
  names.ForgetEnded(name);  // of one that a core before began
  CHECK(names.WillForget(name));
  CHECK(names.IsBeingCleared(name));
  CHECK_FALSE(names.WillForget(NameOf(2)));
  names.ClearEnded(name);
  CHECK_FALSE(names.WillForget(name));
}

TEST_CASE("what was doomed while it was written is forgotten once for each job and write, as each write ends") {
  RemoteNames names;
  const RemoteNames::Name name = NameOf(1);
  CHECK(names.Doom(name, JobId{1}) == 0);  // nothing is being written
  names.WriteBegan(name, 5);
  names.WriteBegan(name, 7);
  CHECK(names.Doom(name, JobId{1}) == 2);
  CHECK(names.Doom(name, JobId{1}) == 0);
  CHECK(names.WillForget(name));
  CHECK_FALSE(names.IsBeingCleared(name));

  const RemoteNames::Ended first = names.WriteEnded(name);
  CHECK(first.serial == 7);  // of the last
  CHECK(first.forget_for == std::vector{JobId{1}});
  CHECK(names.Doom(name, JobId{2}) == 1);
  CHECK(names.WriteEnded(name).forget_for == std::vector{JobId{1}, JobId{2}});
  CHECK_FALSE(names.WillForget(name));
  names.WriteBegan(name, 11);
  CHECK(names.WriteEnded(name).forget_for.empty());
}

TEST_CASE("no job waits for more or fewer forgettings than it is told of, whatever the order") {
  std::mt19937 random(3);
  RemoteNames names;
  std::map<JobId, uint64_t> awaited;
  std::map<uint8_t, uint32_t> writing;
  uint64_t serial = 0, doomed = 0;
  const auto end = [&](uint8_t n) {
    --writing[n];
    for (const JobId job : names.WriteEnded(NameOf(n)).forget_for) {
      REQUIRE(awaited[job] > 0);
      --awaited[job];
    }
  };
  for (int step = 0; step < 20000; ++step) {
    const auto n = static_cast<uint8_t>(random() % 4);
    switch (random() % 4) {
      case 0:
      case 1:
        if (names.WillForget(NameOf(n))) break;  // it isn't written meanwhile
        names.WriteBegan(NameOf(n), ++serial);
        ++writing[n];
        break;
      case 2:
        if (writing[n] > 0) end(n);
        break;
      default: {
        const JobId job{1 + random() % 6};
        const uint32_t writes = names.Doom(NameOf(n), job);
        CHECK(writes <= writing[n]);
        awaited[job] += writes;
        doomed += writes;
      }
    }
    names.CheckInvariants();
  }
  for (uint8_t n = 0; n < 4; ++n) {
    while (writing[n] > 0) end(n);
    CHECK_FALSE(names.WillForget(NameOf(n)));
  }
  for (const auto& [job, left] : awaited) CHECK(left == 0);
  CHECK(doomed > 1000);
}

}  // namespace
}  // namespace kvist::core
