#ifndef KVIST_STORAGE_SSD_VERDICT_H_
#define KVIST_STORAGE_SSD_VERDICT_H_

#include <cstdint>

namespace kvist::ssd {

// What was found at a place, held against what should be there. All but kGood are a miss; which one says what has gone wrong.
enum class Verdict : uint8_t {
  kGood,
  kBlank,          // zeros: nothing was ever written here, or the write was lost
  kNoRecord,       // something else than a header: payload, or what overwrote one
  kVersion,        // a format of another version of kvist
  kDamagedHeader,  // a header that isn't as it was written: flipped bits, or torn within its unit
  kForeign,        // of another store
  kMisdirected,    // of another place
  kStale,          // of an earlier use of the segment: the write was lost, or nothing has been written here since
  kGone,           // of a later use of the segment than was asked for: whoever asked had an old place
  kForged,         // passes for a record of this place, but whoever made it didn't know the segment's secret
  kOther,          // a good record, but not the one that was asked for
  kTorn,           // a good header, but the payload ends otherwise than it was written: the write came to half its way
  kCorrupt,        // a good header, but a run of the payload isn't as it was written
};
inline constexpr uint32_t kVerdicts = static_cast<uint32_t>(Verdict::kCorrupt) + 1;

// In small letters, as metrics and logs have it: "damaged_header".
const char* NameOf(Verdict verdict);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_VERDICT_H_
