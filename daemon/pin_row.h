#ifndef KVIST_DAEMON_PIN_ROW_H_
#define KVIST_DAEMON_PIN_ROW_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "daemon/core/events.h"
#include "storage/ssd/catalog_rows.h"

namespace kvist::daemon {

// A pin as the SSD tier's catalog has it, in the name and the description of an ssd::PinRow. Numbers are little-endian.
//
//   name         by_operator 1 | asked 4 | key 32 | owner ..
//   description  count 8 | ends 8 | keys 32 ..              ends: milliseconds since 1970, INT64_MAX: never
//
// `now`: the wall's clock, for a pin lasts beyond this boot; a clock that is put forward ends it early.
ssd::PinRow ToRow(uint32_t space, const core::PinNote& note, absl::Time now);

// Strict: nothing when it can't be one. One that has ended meanwhile lasts no time.
std::optional<core::PinNote> ParsePin(const ssd::PinRow& row, absl::Time now);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_PIN_ROW_H_
