#ifndef KVIST_DAEMON_CTL_HUMAN_H_
#define KVIST_DAEMON_CTL_HUMAN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "storage/base/units.h"

// Numbers as people read them. What a program reads is `-o json`.
namespace kvist::ctl {

// The bytes that a person has typed: 4194304, 512MiB, "8 GiB"; nothing when it is no such size.
std::optional<Bytes> ParseBytes(absl::string_view text);
std::string HumanBytes(Bytes bytes);                    // 0 B, 1023 B, 1.5 KiB, 64 MiB, 1.25 GiB: three digits that count
std::string HumanCount(uint64_t count);                 // 1,234,567
std::string HumanShare(uint64_t part, uint64_t whole);  // 12.3 %; "-" when whole is 0
std::string HumanDuration(absl::Duration duration);     // 340 ms, 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h: two units at most
std::string HumanRate(double bytes_per_second);         // 0 B/s, 812 MB/s, 2.31 GB/s: decimal, three digits that count
std::string HumanLatency(double seconds);               // 850 ns, 1.25 us, 34 ms, 2.1 s

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_HUMAN_H_
