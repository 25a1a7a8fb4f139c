#ifndef KVIST_STORAGE_REMOTE_VERDICT_H_
#define KVIST_STORAGE_REMOTE_VERDICT_H_

#include <cstdint>

namespace kvist::remote {

// What was found under an object's name, held against what should be there. All but kGood are a miss; which one says what has gone wrong.
enum class Verdict : uint8_t {
  kGood,
  kMissing,        // nothing: an ordinary miss
  kTruncated,      // less than it was: cut off, or parts of it are gone
  kTooLong,        // more than its header says, or than there is room for
  kNoObject,       // something else than an object of kvist
  kVersion,        // a format of another version of kvist
  kDamagedHeader,  // a header that isn't as it was written
  kForeign,        // of another secret: another cluster's, or forged by somebody who doesn't know it
  kOther,          // a good object, but not the one that has this name: the store has mixed them up
  kStale,          // of an epoch before the one that was asked for
  kCipher,         // encrypted where it shouldn't be, or not where it should
  kCorrupt,        // a good header, but the body isn't as it was written
  kForged,         // passes for its body, but whoever made it didn't know the secret
};
inline constexpr uint32_t kVerdicts = static_cast<uint32_t>(Verdict::kForged) + 1;

// In small letters, as metrics and logs have it: "damaged_header".
const char* NameOf(Verdict verdict);

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_VERDICT_H_
