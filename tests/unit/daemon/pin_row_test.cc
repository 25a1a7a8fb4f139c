#include "daemon/pin_row.h"

#include <catch2/catch.hpp>

#include <string>

namespace kvist::daemon {
namespace {

using core::PinNote;

ChunkKey KeyOf(uint32_t n) {
  ChunkKey key;
  key.bytes.fill(static_cast<uint8_t>(n + 1));
  return key;
}

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

PinNote Note(bool by_operator, uint32_t keys, absl::Duration lasts) {
  PinNote note{.pin = {std::string("own\0er", 6), KeyOf(77), keys + 2, by_operator}, .count = 3, .lasts = lasts};
  for (uint32_t i = 0; i < keys; ++i) note.keys.push_back(KeyOf(i));
  return note;
}

TEST_CASE("A pin is what it was when its row is read, and lasts as long as the wall's clock has left of it") {
  for (const bool by_operator : {false, true}) {
    for (const uint32_t keys : {1u, 5u, 4094u}) {
      for (const absl::Duration lasts :
           {absl::Seconds(90), absl::Hours(1'000'000), absl::InfiniteDuration(), absl::ZeroDuration()}) {
        const PinNote note = Note(by_operator, keys, lasts);
        const auto read = ParsePin(ToRow(7, note, kNow), kNow + absl::Seconds(60));
        REQUIRE(read.has_value());
        CHECK(read->pin == note.pin);
        CHECK(read->count == 3);
        CHECK(read->keys == note.keys);
        CHECK(read->lasts == lasts - absl::Seconds(60));
      }
    }
  }
}

TEST_CASE("A row that can't be a pin is none") {
  const ssd::PinRow good = ToRow(7, Note(true, 2, absl::Seconds(5)), kNow);
  REQUIRE(ParsePin(good, kNow).has_value());
  for (size_t bytes = 0; bytes < 37; ++bytes) {
    ssd::PinRow bad = good;
    bad.name.resize(bytes);
    CHECK_FALSE(ParsePin(bad, kNow).has_value());
  }
  for (size_t bytes = 0; bytes < good.description.size(); ++bytes) {
    ssd::PinRow bad = good;
    bad.description.resize(bytes);
    CHECK(ParsePin(bad, kNow).has_value() == (bytes == 16 + 32));  // one key is enough
  }
  ssd::PinRow bad = good;
  bad.name[0] = 2;
  CHECK_FALSE(ParsePin(bad, kNow).has_value());
  bad = good;
  bad.name[1] = 1;  // more keys than were asked for
  CHECK_FALSE(ParsePin(bad, kNow).has_value());
  bad = good;
  bad.name[3] = 1;  // more than may be asked for
  CHECK_FALSE(ParsePin(bad, kNow).has_value());
  bad = good;
  bad.description.replace(0, 8, std::string(8, '\0'));  // one that is over
  CHECK_FALSE(ParsePin(bad, kNow).has_value());
}

}  // namespace
}  // namespace kvist::daemon
