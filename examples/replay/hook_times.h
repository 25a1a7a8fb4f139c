#ifndef KVIST_EXAMPLES_REPLAY_HOOK_TIMES_H_
#define KVIST_EXAMPLES_REPLAY_HOOK_TIMES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvist::replay {

// How long the calls of one hook took, and how many bytes they moved.
class HookTimes {
 public:
  void Add(double microseconds, uint64_t bytes = 0) {
    microseconds_.push_back(static_cast<float>(microseconds));
    sum_us_ += microseconds;
    bytes_ += bytes;
  }

  size_t calls() const { return microseconds_.size(); }
  uint64_t bytes() const { return bytes_; }
  // Bytes over the time of the calls alone; 0 without calls.
  double gigabytes_per_second() const { return sum_us_ > 0 ? static_cast<double>(bytes_) / sum_us_ / 1e3 : 0; }
  // The value that `share` of the calls don't exceed (nearest rank); 0 without calls.
  double Percentile(double share) const {
    if (microseconds_.empty()) return 0;
    std::vector<float> copy = microseconds_;
    const auto rank = std::min(copy.size() - 1, static_cast<size_t>(share * static_cast<double>(copy.size())));
    std::nth_element(copy.begin(), copy.begin() + static_cast<std::ptrdiff_t>(rank), copy.end());
    return copy[rank];
  }

 private:
  std::vector<float> microseconds_;
  double sum_us_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace kvist::replay

#endif  // KVIST_EXAMPLES_REPLAY_HOOK_TIMES_H_
