#include "cuda/gpu_engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "cuda/bus_claims.h"
#include "cuda/copy_kernel.h"
#include "cuda/copy_queue.h"
#include "cuda/gpu_lane.h"
#include "cuda/running_copy.h"
#include "storage/base/clock.h"

namespace kvist::cuda {
namespace {

// Of stores in flight at most while there are loads, which otherwise had to wait for what is in flight.
constexpr uint64_t kWindowOfStoresBesideLoads = uint64_t{16} << 20;
// How often it is asked whether pages are written: soon at first, then less and less.
constexpr absl::Duration kAskFirst = absl::Microseconds(20);
constexpr absl::Duration kAskMost = absl::Milliseconds(1);

class GpuEngine final : public CopyEngine {
 public:
  GpuEngine(Gpu* gpu, GpuEngineOptions options, Done done)
      : gpu_(gpu), options_(std::move(options)), done_(std::move(done)), thread_([this] { Run(); }) {
    ::pthread_setname_np(thread_.native_handle(), "kvist-gpu-copy");
  }
  ~GpuEngine() override {
    queue_.Stop();
    thread_.join();
  }

  void Submit(Copy copy) override {
    if (copy.pages_ready != nullptr) unready_.fetch_add(1, std::memory_order_relaxed);
    if (copy.bus != nullptr) bus_.Add(copy.bus);
    queue_.Submit(std::make_shared<RunningCopy>(std::move(copy), options_.verify));
  }
  void Cancel(OpId op) override { queue_.Cancel(op); }
  void Arrived() override { queue_.Arrived(); }
  void Look() override { queue_.Look(); }

 private:
  void Run() {
    (void)::prctl(PR_SET_TIMERSLACK, 1'000UL, 0, 0, 0);  // naps are of microseconds
    const driver::Current current(gpu_->driver(), gpu_->context());
    for (const auto& [lane, direction] : {std::pair{&loads_, Direction::kLoad}, std::pair{&stores_, Direction::kStore}}) {
      if (absl::Status status = lane->Open(gpu_, direction); !status.ok()) gpu_->Lose(status);
    }
    LoadKernel();
    while (!queue_.over() || !loads_.idle() || !stores_.idle()) {
      CollectAll();
      Claim();
    }
    loads_.Close();
    stores_.Close();
    kernel_.reset();
  }

  void LoadKernel() {
    if (!options_.kernel.has_value()) return;
    absl::StatusOr<std::unique_ptr<CopyKernel>> kernel = CopyKernel::Load(gpu_);
    if (!kernel.ok()) return options_.no_kernel(kernel.status());
    kernel_ = *std::move(kernel);
    for (GpuLane* lane : {&loads_, &stores_})
      lane->UseKernel({kernel_.get(), *options_.kernel, options_.slots_pinned, options_.no_kernel, options_.found});
  }

  // Takes what comes next, as much as has room; sleeps before when there is nothing.
  void Claim() {
    if (unready_.load(std::memory_order_relaxed) > 0) queue_.Look();
    bool claimed = false;
    const auto room = [&] { return Room(); };
    bool slept = false;
    const auto patience = [&] {
      const absl::Duration at_most = claimed ? absl::ZeroDuration() : Patience();
      slept = at_most > absl::ZeroDuration();
      return at_most;
    };
    while (std::optional<CopyQueue::Claim> claim = queue_.Next(room, patience)) {
      claimed = true;
      GpuLane* const sent = Take(*claim);
      if (sent == nullptr) continue;
      // That took a while, and there may be no end of claims: nobody else waits for it.
      (sent == &loads_ ? stores_ : loads_).Send();
      CollectAll();
      if (unready_.load(std::memory_order_relaxed) > 0) queue_.Look();
    }
    loads_.Send();
    stores_.Send();
    const CopyQueue::Wanted wanted = Room();  // and there was nothing of it
    if (wanted.loads) loads_.Rest();
    if (wanted.stores || stores_wait_ < absl::InfiniteDuration()) stores_.Rest();
    if (claimed) {
      ask_again_ = kAskFirst;
    } else if (slept) {
      ask_again_ = std::min(2 * ask_again_, kAskMost);
    }
    if (!claimed && queue_.over()) absl::SleepFor(std::min(Patience(), kAskMost));  // there Next doesn't
  }

  absl::Duration Patience() const {
    const absl::Duration of_lanes = std::min({loads_.Patience(), stores_.Patience(), stores_wait_});
    return unready_.load(std::memory_order_relaxed) > 0 ? std::min(of_lanes, ask_again_) : of_lanes;
  }

  CopyQueue::Wanted Room() {
    const uint64_t of_stores = loads_.idle() ? GpuLane::kWindow : kWindowOfStoresBesideLoads;
    const absl::Duration wait = bus_.StoresWait(MonotonicNanos());
    // Soon again: a claim may end before it said.
    stores_wait_ = wait > absl::ZeroDuration() ? std::min(wait, kAskMost) : absl::InfiniteDuration();
    return {loads_.bytes() < GpuLane::kWindow, stores_.bytes() < of_stores && wait == absl::ZeroDuration()};
  }

  // The lane that has sent a batch for it; null: none.
  GpuLane* Take(const CopyQueue::Claim& claim) {
    RunningCopy& copy = *claim.copy;
    if (claim.skip) {
      if (copy.Skip(claim.count)) End(copy);
      return nullptr;
    }
    CopyEnd begun = copy.Begin(claim.first);
    if (absl::Status lost = gpu_->lost(); begun.status.ok() && !lost.ok()) begun.status = std::move(lost);
    if (!begun.status.ok()) {
      Settle(copy, claim.first, std::move(begun));
      return nullptr;
    }
    GpuLane& lane = copy.direction() == Direction::kLoad ? loads_ : stores_;
    return lane.Put({claim.copy, claim.first}) ? &lane : nullptr;
  }

  void CollectAll() {
    Collect(&loads_);
    Collect(&stores_);
  }

  void Collect(GpuLane* lane) {
    for (GpuLane::Ended ended; lane->Collect(&ended);) {
      for (const GpuLane::UnitOfCopy& unit : ended.units) Settle(*unit.copy, unit.unit, {ended.status});
    }
  }

  void Settle(RunningCopy& copy, uint64_t unit, CopyEnd end) {
    if (copy.Copied(unit, std::move(end))) {
      End(copy);
    } else if (copy.streams() && copy.stopped()) {
      Look();  // what is left of it has only to end
    }
  }

  void End(RunningCopy& copy) {
    if (copy.copy().pages_ready != nullptr) unready_.fetch_sub(1, std::memory_order_relaxed);
    const OpId op = copy.op();
    CopyEnd end = copy.Result();
    queue_.Forget(op);
    done_(op, std::move(end));
  }

  Gpu* const gpu_;
  const GpuEngineOptions options_;
  const Done done_;
  CopyQueue queue_;
  BusClaims bus_;
  std::atomic<uint32_t> unready_{0};  // copies with a PagesReady: it tells nobody when it is

  // The thread's.
  std::unique_ptr<CopyKernel> kernel_;  // null: none
  GpuLane loads_, stores_;
  absl::Duration stores_wait_ = absl::InfiniteDuration();  // until they may go on; infinite: they may
  absl::Duration ask_again_ = kAskFirst;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

std::unique_ptr<CopyEngine> MakeGpuEngine(Gpu* gpu, GpuEngineOptions options, CopyEngine::Done done) {
  return std::make_unique<GpuEngine>(gpu, std::move(options), std::move(done));
}

}  // namespace kvist::cuda
