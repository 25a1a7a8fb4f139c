#ifndef KVIST_TESTS_SUPPORT_WORKING_ENGINE_H_
#define KVIST_TESTS_SUPPORT_WORKING_ENGINE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_engine.h"

namespace kvist::test {

// An engine at work in a thread of its own: prompt after prompt it loads what there is, computes the rest, stores it; each call has a
// deadline and is measured. Pages whose load isn't over at its deadline are put aside until kvistd or its end gives them back, as a real
// engine does.
class WorkingEngine {
 public:
  static constexpr int64_t kDeadlineMicros = 200'000;  // of every call

  WorkingEngine(const std::string& socket, const std::string& instance);
  ~WorkingEngine() { Finish(); }
  void Finish();

  const Status& status() const { return engine_.status; }  // of connecting; without ok() it does nothing
  uint64_t computed() const { return computed_; }          // prompts
  uint64_t hits() const { return hits_; }                  // prompts that were loaded whole, right or wrong
  uint64_t wrong() const { return wrong_; }                // chunks
  double longest_us() const { return static_cast<double>(longest_us_.load()); }  // of any call
  size_t put_aside() const { return put_aside_; }                                // loads
  size_t never_ended() const { return never_ended_; }  // loads and stores that still kept their pages when all was over

 private:
  struct Area {         // of pages: one prompt's
    kvist_op load = 0;  // that isn't over
  };
  template <class Call>
  auto Measured(Call call);
  void Work();
  void Prompt(const std::vector<kvist_key>& keys, uint32_t number, Area* area);

  FakeEngine engine_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> computed_{0}, hits_{0}, wrong_{0};
  std::atomic<int64_t> longest_us_{0};
  std::atomic<size_t> put_aside_{0}, never_ended_{0};
};

// Seconds until the counter has risen by 3; negative when it doesn't within the time.
double UntilItGoesOn(const std::function<uint64_t()>& counter, std::chrono::seconds within);

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_WORKING_ENGINE_H_
