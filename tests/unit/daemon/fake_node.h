#ifndef KVIST_TESTS_UNIT_DAEMON_FAKE_NODE_H_
#define KVIST_TESTS_UNIT_DAEMON_FAKE_NODE_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/rpc/node_control.h"
#include "storage/base/clock.h"

namespace kvist {

// A node that answers what a test has put into it, and remembers what it was asked. Threads: any.
class FakeNode : public rpc::NodeControl {
 public:
  static constexpr const char* kSpaceA = "aaaa111111111111111111111111111111111111111111111111111111111111";
  static constexpr const char* kSpaceB = "aabb222222222222222222222222222222222222222222222222222222222222";

  FakeNode() {
    status_.engine_socket = "/run/kvist/engine.sock";
    status_.state_dir = "/var/lib/kvist-of-another";
    status_.uptime = absl::Seconds(3725.5);
    status_.pool_capacity = GiB(4);
    status_.pool_used = GiB(1);
    status_.pool_touched = GiB(2);
    status_.pool_page = MiB(2);
    status_.slab = MiB(64);
    status_.pool_slots = 12345;
    status_.pool_regions = 1;
    status_.pool_locked = true;
    status_.spaces = {
        {.digest = kSpaceA, .tenant = "blue", .model = "llama", .chunks = 9'007'199'254'740'993, .bytes = MiB(512)},
        {.digest = kSpaceB, .tenant = "uid:1000", .model = "evil\033[2J\xff", .chunks = 1, .bytes = KiB(1)}};
    status_.ssd = {.state = "on", .trouble = "", .recovering = false, .chunks = 1234, .live = GiB(3), .capacity = GiB(12)};
    ssd_.tier = status_.ssd;
    ssd_.devices.resize(2);
    for (size_t i = 0; i < 2; ++i) {
      rpc::SsdStatus::Device& device = ssd_.devices[i];
      device.directory = i == 0 ? "/var/lib/kvist/ssd" : "/mnt/evil\033[2J\xff";
      device.how = "io_uring, direct I/O, registered buffers";
      device.writable = true;
      device.segments = 24;
      device.free = 17;
      device.released = 40;
      device.capacity = GiB(6);
      device.live = i == 0 ? GiB(1) : GiB(2);
      device.written = GiB(12);
      device.moved = i == 0 ? GiB(4) : GiB(12);  // the second has kept nothing of its own yet
      device.read = MiB(100);
      device.syncs = 1234567;
      device.in_flight = MiB(24);
      device.waiting = 7;
      device.read_errors = 2;
      device.verdicts = {{"good", 4000}, {"torn", i == 0 ? 0 : 3}, {"corrupt", i == 0 ? 0 : 1200}};
    }
    ssd_.commits = 98765;
    ssd_.chunks_written = 5000;
    ssd_.chunks_corrupt = 1203;
    ssd_.recovery = {.ended = true,
                     .error = "",
                     .message = "",
                     .rebuilt = false,
                     .chunks = 4321,
                     .cleared = 0,
                     .skipped = 5,
                     .elapsed = absl::Milliseconds(340)};
    ssd_.scrub = {.passes = 2, .records = 7000, .damaged = 4, .unreadable = 1, .read = GiB(14), .last = absl::Seconds(100)};
    status_.sessions = 3;
    status_.lookups = 10;
    status_.chunks_asked = 1000;
    status_.chunks_hit = 250;
    sessions_ = {{.id = 7,
                  .instance = "engine",
                  .role = "worker",
                  .rank = 1,
                  .tenant = "blue",
                  .pid = 42,
                  .uid = 1000,
                  .space = kSpaceA,
                  .model = "llama",
                  .age = absl::Seconds(90),
                  .ops = 2,
                  .requests = 1234}};
  }

  absl::StatusOr<rpc::NodeStatus> Status(absl::Time deadline) override { return Answer(status_, deadline); }
  absl::StatusOr<rpc::SsdStatus> Ssd(absl::Time deadline) override { return Answer(ssd_, deadline); }
  absl::StatusOr<rpc::Page<rpc::SessionStatus>> Sessions(uint64_t after, absl::Time deadline) override {
    return Answer(PageOf(sessions_, after), deadline);
  }
  absl::StatusOr<rpc::JobStatus> Clear(const rpc::ClearWish& wish, const std::string& request,
                                       absl::Time deadline) override {
    rpc::JobStatus job;
    {
      absl::MutexLock lock(&mutex_);
      cleared_.push_back(wish.space);
      changed_.SignalAll();
      jobs_.push_back({.id = jobs_.size() + 1,
                       .kind = "clear",
                       .space = wish.space,
                       .state = goes_on_ ? "running" : "done",
                       .done = 0,
                       .total = 1000,
                       .chunks = goes_on_ ? uint64_t{0} : 17,
                       .request = request});
      jobs_.back().tier = wish.tier;
      if (!goes_on_) jobs_.back().done = 1000;
      job = jobs_.back();
    }
    return Answer(job, deadline);
  }
  absl::StatusOr<std::vector<rpc::JobStatus>> Jobs(absl::Time deadline) override { return Answer(jobs(), deadline); }
  // Each look at a running job finds it a quarter further, but the last of it is never done.
  absl::StatusOr<rpc::JobStatus> Job(uint64_t id, absl::Time deadline) override {
    absl::StatusOr<rpc::JobStatus> job = Find(id, [](rpc::JobStatus& running) {
      running.done = std::min<uint64_t>(running.done + 250, 750);
      running.chunks = running.done / 10;
    });
    if (!job.ok()) return job;
    return Answer(*job, deadline);
  }
  absl::StatusOr<rpc::JobStatus> CancelJob(uint64_t id, absl::Time deadline) override {
    absl::StatusOr<rpc::JobStatus> job = Find(id, [](rpc::JobStatus& running) { running.state = "cancelled"; });
    if (!job.ok()) return job;
    return Answer(*job, deadline);
  }
  absl::StatusOr<std::vector<rpc::QuotaStatus>> Quotas(absl::Time deadline) override {
    return Answer(
        std::vector<rpc::QuotaStatus>{
            {.tenant = "blue", .bytes = GiB(2), .origin = "configuration", .used = GiB(1), .evictions = 1234, .note = ""},
            {.tenant = "uid:7", .bytes = Bytes{}, .origin = "", .used = MiB(3), .evictions = 0, .note = ""}},
        deadline);
  }
  absl::StatusOr<rpc::QuotaStatus> SetQuota(const std::string& tenant, Bytes bytes, absl::Time deadline) override {
    if (tenant == "nobody") return absl::InvalidArgumentError("no engine can be of tenant \"nobody\"");
    return Answer(rpc::QuotaStatus{.tenant = tenant,
                                   .bytes = bytes,
                                   .origin = bytes == Bytes{} ? "" : "runtime",
                                   .used = MiB(3),
                                   .evictions = 5,
                                   .note = bytes > status_.pool_capacity ? "more than the pool" : ""},
                  deadline);
  }
  absl::StatusOr<std::vector<rpc::Found>> Lookup(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                                 absl::Time deadline) override {
    std::vector<rpc::Found> found;
    for (const rpc::NodeStatus::Space& space : status_.spaces) {
      if (!filter.Fits(space.digest, space.model, space.tenant)) continue;
      const auto asked = static_cast<uint32_t>(prompt.KeysOf(16).size());
      found.push_back({space.digest, space.tenant, space.model, 16, asked, asked / 2, asked / 4});
    }
    if (found.empty()) return absl::NotFoundError("space: no space fits");
    return Answer(found, deadline);
  }
  absl::StatusOr<rpc::Pinned> Pin(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt, const rpc::PinWish& wish,
                                  absl::Time deadline) override {
    auto found = Lookup(filter, prompt, deadline);
    if (!found.ok()) return found.status();
    rpc::Pinned pinned{{}, found->size()};
    for (const rpc::Found& of : *found) {
      rpc::PinStatus pin{.id = 9, .owner = wish.owner, .tenant = of.tenant, .space = of.digest, .model = of.model};
      pin.chunks = of.chunks;
      pin.asked = of.asked;
      pin.count = 1;
      pin.lasts = wish.lasts;
      if (of.chunks > 0) pinned.pins.push_back(pin);
    }
    return Answer(pinned, deadline);
  }
  absl::StatusOr<rpc::PromptJobs> ClearPrompt(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                              const rpc::ClearWish& wish, const std::string& request,
                                              absl::Time deadline) override {
    absl::StatusOr<rpc::PromptJobs> jobs = JobsOn("clear-prompt", filter, prompt, request, deadline);
    if (!jobs.ok()) return jobs;
    for (rpc::JobStatus& job : jobs->jobs) job.tier = wish.tier;
    return jobs;
  }
  absl::StatusOr<rpc::PromptJobs> Move(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt, const rpc::MoveWish& wish,
                                       const std::string& request, absl::Time deadline) override {
    {
      absl::MutexLock lock(&mutex_);
      moves_.push_back(wish);
    }
    return JobsOn(wish.prefetch ? "prefetch" : "move", filter, prompt, request, deadline);
  }
  absl::StatusOr<rpc::PromptJobs> Recode(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                         const rpc::RecodeWish& wish, const std::string& request,
                                         absl::Time deadline) override {
    {
      absl::MutexLock lock(&mutex_);
      recodes_.push_back(wish);
    }
    return JobsOn(wish.method.empty() ? "decompress" : "compress", filter, prompt, request, deadline);
  }
  std::vector<rpc::MoveWish> moves() const {
    absl::MutexLock lock(&mutex_);
    return moves_;
  }
  std::vector<rpc::RecodeWish> recodes() const {
    absl::MutexLock lock(&mutex_);
    return recodes_;
  }
  absl::StatusOr<rpc::Page<rpc::PinStatus>> Pins(uint64_t after, absl::Time deadline) override {
    return Answer(PageOf(pins_, after), deadline);
  }
  absl::StatusOr<rpc::PinStatus> RemovePin(uint64_t id, absl::Time deadline) override {
    const auto pin = std::find_if(pins_.begin(), pins_.end(), [id](const auto& row) { return row.id == id; });
    if (pin == pins_.end()) return absl::NotFoundError("no pin " + std::to_string(id));
    return Answer(*pin, deadline);
  }
  // Before it is asked.
  void SetSsd(rpc::SsdStatus ssd) {
    status_.ssd = ssd.tier;
    ssd_ = std::move(ssd);
  }
  const rpc::SsdStatus& ssd() const { return ssd_; }
  void SetGpus(std::vector<rpc::NodeStatus::Gpu> gpus, Bytes pinned) {
    status_.gpus = std::move(gpus);
    status_.pool_pinned = pinned;
  }
  // Before it is asked: so many of each, their names as long as may be.
  void Crowd(uint64_t rows) {
    pins_.resize(1);
    sessions_.resize(1);
    for (uint64_t id = 10; pins_.size() < rows; ++id) {
      pins_.push_back(pins_.front());
      pins_.back().id = id;
      pins_.back().owner = pins_.back().model = std::string(255, '\xff');
      sessions_.push_back(sessions_.front());
      sessions_.back().id = id;
      sessions_.back().instance = sessions_.back().model = pins_.back().owner;
    }
  }
  // Clears don't end by themselves from now on.
  void ClearsGoOn() {
    absl::MutexLock lock(&mutex_);
    goes_on_ = true;
  }
  // Those that go on come to their end.
  void EndJobs() {
    absl::MutexLock lock(&mutex_);
    for (rpc::JobStatus& job : jobs_) {
      if (job.running()) job.state = "done";
    }
  }
  // Those that run go on after a restart.
  void Restarted() {
    absl::MutexLock lock(&mutex_);
    for (rpc::JobStatus& job : jobs_) job.resumed = job.resumed || job.running();
  }
  std::vector<rpc::JobStatus> jobs() const {
    absl::MutexLock lock(&mutex_);
    return jobs_;
  }

  absl::StatusOr<rpc::ReloadResult> Reload(absl::Time deadline) override { return Answer(reloaded_, deadline); }

  void Reloads(rpc::ReloadResult result) { reloaded_ = std::move(result); }  // before it is asked

  // What calls answer from now on, in place of what they hold.
  void Fail(absl::Status error) {
    absl::MutexLock lock(&mutex_);
    error_ = std::move(error);
  }
  // Calls don't answer until their deadline, or Stop.
  void Hang() {
    absl::MutexLock lock(&mutex_);
    hanging_ = true;
  }
  void Stop() {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    changed_.SignalAll();
  }
  // Time that the last call was given.
  absl::Duration given() const {
    absl::MutexLock lock(&mutex_);
    return given_;
  }
  void WaitForAClear() const {
    absl::MutexLock lock(&mutex_);
    while (cleared_.empty()) changed_.Wait(&mutex_);
  }
  std::vector<std::string> cleared() const {
    absl::MutexLock lock(&mutex_);
    return cleared_;
  }

 private:
  absl::StatusOr<rpc::PromptJobs> JobsOn(const std::string& kind, const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                         const std::string& request, absl::Time deadline) {
    const auto found = Lookup(filter, prompt, deadline);
    if (!found.ok()) return found.status();
    rpc::PromptJobs started{{}, found->size()};
    {
      absl::MutexLock lock(&mutex_);
      for (const rpc::Found& of : *found) {
        jobs_.push_back({.id = jobs_.size() + 1,
                         .kind = kind,
                         .space = of.digest,
                         .state = goes_on_ ? "running" : "done",
                         .done = goes_on_ ? uint64_t{0} : 1000,
                         .total = 1000,
                         .chunks = of.chunks,
                         .request = request,
                         .bytes = KiB(64) * of.chunks,
                         .already = of.on_disk,
                         .left = 1});
        started.jobs.push_back(jobs_.back());
      }
    }
    return Answer(started, deadline);
  }
  template <class Step>
  absl::StatusOr<rpc::JobStatus> Find(uint64_t id, Step step) {
    absl::MutexLock lock(&mutex_);
    if (id == 0 || id > jobs_.size()) return absl::NotFoundError("no such job");
    if (jobs_[id - 1].running()) step(jobs_[id - 1]);
    return jobs_[id - 1];
  }

  template <class Row>
  static rpc::Page<Row> PageOf(const std::vector<Row>& rows, uint64_t after) {
    rpc::Page<Row> page;
    for (const Row& row : rows) {
      if (row.id <= after) continue;
      if (page.rows.size() == rpc::kPageRows) {
        page.next = page.rows.back().id;
        break;
      }
      page.rows.push_back(row);
    }
    return page;
  }

  template <class T>
  absl::StatusOr<T> Answer(const T& answer, absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    given_ = deadline - MonotonicNow();
    if (hanging_) {
      const absl::Time until = absl::Now() + given_;
      while (!stopped_ && !changed_.WaitWithDeadline(&mutex_, until)) {}
      if (stopped_) return absl::UnavailableError("kvistd is stopping");
      return absl::DeadlineExceededError("the node didn't answer in time");
    }
    if (!error_.ok()) return error_;
    return answer;
  }

  rpc::NodeStatus status_;
  rpc::SsdStatus ssd_;
  std::vector<rpc::SessionStatus> sessions_;
  std::vector<rpc::PinStatus> pins_{{.id = 3,
                                     .owner = "llama-0",
                                     .tenant = "blue",
                                     .space = std::string(64, 'a'),
                                     .model = "llama",
                                     .chunks = 12,
                                     .asked = 16,
                                     .bytes = MiB(48),
                                     .count = 2,
                                     .age = absl::Minutes(90)}};
  rpc::ReloadResult reloaded_;
  mutable absl::Mutex mutex_;
  mutable absl::CondVar changed_;  // stopped_ or cleared_
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  absl::Duration given_ ABSL_GUARDED_BY(mutex_);
  bool hanging_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool goes_on_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> cleared_ ABSL_GUARDED_BY(mutex_);
  std::vector<rpc::JobStatus> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<rpc::MoveWish> moves_ ABSL_GUARDED_BY(mutex_);
  std::vector<rpc::RecodeWish> recodes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvist

#endif  // KVIST_TESTS_UNIT_DAEMON_FAKE_NODE_H_
