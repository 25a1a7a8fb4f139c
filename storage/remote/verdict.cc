#include "storage/remote/verdict.h"

namespace kvist::remote {

const char* NameOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGood: return "good";
    case Verdict::kMissing: return "missing";
    case Verdict::kTruncated: return "truncated";
    case Verdict::kTooLong: return "too_long";
    case Verdict::kNoObject: return "no_object";
    case Verdict::kVersion: return "version";
    case Verdict::kDamagedHeader: return "damaged_header";
    case Verdict::kForeign: return "foreign";
    case Verdict::kOther: return "other";
    case Verdict::kStale: return "stale";
    case Verdict::kCipher: return "cipher";
    case Verdict::kCorrupt: return "corrupt";
    case Verdict::kForged: return "forged";
  }
  return "unknown";
}

}  // namespace kvist::remote
