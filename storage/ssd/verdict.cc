#include "storage/ssd/verdict.h"

namespace kvist::ssd {

const char* NameOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGood: return "good";
    case Verdict::kBlank: return "blank";
    case Verdict::kNoRecord: return "no_record";
    case Verdict::kVersion: return "version";
    case Verdict::kDamagedHeader: return "damaged_header";
    case Verdict::kForeign: return "foreign";
    case Verdict::kMisdirected: return "misdirected";
    case Verdict::kStale: return "stale";
    case Verdict::kGone: return "gone";
    case Verdict::kForged: return "forged";
    case Verdict::kOther: return "other";
    case Verdict::kTorn: return "torn";
    case Verdict::kCorrupt: return "corrupt";
  }
  return "unknown";
}

}  // namespace kvist::ssd
