#include "tests/support/sim_hands.h"

#include <algorithm>

#include "storage/base/check.h"
#include "storage/ssd/store_device.h"

namespace kvist::test {
namespace {

constexpr uint64_t kPatience = 200'000;  // steps; nothing takes longer unless it hangs

}  // namespace

class SimHands::Queue final : public ssd::TaskQueue {
 public:
  explicit Queue(SimHands* hands) : hands_(*hands) {}
  ~Queue() override { std::erase(hands_.queues_, this); }

  void Post(Task task) override { tasks_.push_back(std::move(task)); }
  void PostAt(absl::Time when, Task task) override { later_.emplace(when, std::move(task)); }
  void Join() override {
    joined_ = true;
    hands_.GoOnUntil([this] { return !busy_ && tasks_.empty() && later_.empty(); });
  }

  // False: nothing to do, or a task of it waits.
  bool DoFirst() {
    while (!later_.empty() && (joined_ || later_.begin()->first <= hands_.now_)) {
      tasks_.push_back(std::move(later_.begin()->second));
      later_.erase(later_.begin());
    }
    if (busy_ || tasks_.empty()) return false;
    busy_ = true;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    task();
    busy_ = false;
    return true;
  }

 private:
  SimHands& hands_;
  std::deque<Task> tasks_;
  std::multimap<absl::Time, Task> later_;
  bool busy_ = false;
  bool joined_ = false;
};

void SimHands::Step() {
  now_ += absl::Microseconds(prng_.Below(50)) * (prng_.Percent(2) ? 1000 : 1);
  Passed();
  const size_t actors = queues_.size() + devices_.size() + others_.size();
  if (actors == 0) return;
  const size_t first = prng_.Below(actors);
  size_t tried = 0;
  while (tried < actors && !Try((first + tried) % actors)) ++tried;
  if (tried == actors) now_ += absl::Milliseconds(prng_.Below(20));
}

void SimHands::Passed() {
  if (crash_in_ > 0 && --crash_in_ == 0) throw Crash{};
}

bool SimHands::Try(size_t actor) {
  if (actor < queues_.size()) return queues_[actor]->DoFirst();
  actor -= queues_.size();
  if (actor < devices_.size()) {
    Device& of = devices_[actor];
    ssd::StoreDevice* const device = of.device;
    if (!std::exchange(of.begun, true)) {
      device->Begin();
    } else if (!device->ended() && !(sleeps_ && sleeps_(of.nth, now_))) {
      device->Turn(now_, absl::InfiniteFuture());
    } else {
      return false;
    }
    return true;
  }
  Other& other = others_[actor - devices_.size()];
  if (other.busy) return false;
  other.busy = true;
  const bool did = other.work();
  others_[actor - devices_.size()].busy = false;
  return did;
}

void SimHands::Forget() {
  queues_.clear();
  devices_.clear();
  started_ = 0;
  for (Other& other : others_) other.busy = false;
  crash_in_ = 0;
}

template <class Ended>
void SimHands::GoOnUntil(Ended ended) {
  for (uint64_t steps = 0; !ended(); ++steps) {
    if (steps > kPatience) throw Stuck{};
    Step();
  }
}

std::unique_ptr<ssd::TaskQueue> SimHands::MakeQueue() {
  auto queue = std::make_unique<Queue>(this);
  queues_.push_back(queue.get());
  return queue;
}

void SimHands::Start(ssd::StoreDevice* device) { devices_.push_back({device, started_++}); }

void SimHands::Join(ssd::StoreDevice* device) {
  GoOnUntil([device] { return device->ended(); });
  std::erase_if(devices_, [device](const Device& of) { return of.device == device; });
}

void SimHands::Await(const absl::Notification& done) {
  GoOnUntil([&done] { return done.HasBeenNotified(); });
}

}  // namespace kvist::test
