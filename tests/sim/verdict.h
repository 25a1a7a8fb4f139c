#ifndef KVIST_TESTS_SIM_VERDICT_H_
#define KVIST_TESTS_SIM_VERDICT_H_

#include <string>
#include <string_view>

namespace kvist::sim {

// Whether a run has kept its promises, and the first that it broke. What comes after a broken promise proves nothing, so only the
// first counts, and the run ends there.
class Verdict {
 public:
  bool kept() const { return promise_.empty(); }
  void Break(std::string_view promise, std::string detail) {
    if (!kept()) return;
    promise_ = promise;
    detail_ = std::move(detail);
  }
  // Breaks `promise` unless `holds`; returns `holds`.
  bool Expect(bool holds, std::string_view promise, std::string_view detail) {
    if (!holds) Break(promise, std::string(detail));
    return holds;
  }
  const std::string& promise() const { return promise_; }
  const std::string& detail() const { return detail_; }

 private:
  std::string promise_;
  std::string detail_;
};

// The promises, in the words of a failing run (DESIGN.md section 10).
inline constexpr std::string_view kNoWrongBytes = "no wrong bytes";
inline constexpr std::string_view kNothingHalfDone = "nothing half-done is visible";
inline constexpr std::string_view kOneAnswer = "every request gets exactly one answer";
inline constexpr std::string_view kNothingLeaks = "nothing leaks";
inline constexpr std::string_view kStaleRefused = "a stale handle is refused";
inline constexpr std::string_view kClearedIsGone = "what was cleared is never a hit";
inline constexpr std::string_view kTenantsApart = "spaces never see each other";
inline constexpr std::string_view kBudgetsHold = "budgets hold";
inline constexpr std::string_view kBoundedWork = "every event does bounded work";
inline constexpr std::string_view kToldIsHeld = "what a core tells of its chunks is what it holds";
inline constexpr std::string_view kSurvives = "what is whole in slots survives the core";
inline constexpr std::string_view kServesAgain = "the pool serves again when nothing needs it";

}  // namespace kvist::sim

#endif  // KVIST_TESTS_SIM_VERDICT_H_
