#ifndef KVIST_TESTS_UNIT_CONTROLLER_HELD_NODE_H_
#define KVIST_TESTS_UNIT_CONTROLLER_HELD_NODE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/controller/node_api.h"
#include "storage/base/clock.h"

namespace kvist {

// A node elsewhere that answers when a test lets it, or never. Threads: any.
class HeldNode : public controller::NodeApi {
 public:
  // Answers all that it was asked, with this.
  void Answer(const absl::Status& error) {
    std::vector<std::function<void(absl::Status)>> held;
    {
      absl::MutexLock lock(&mutex_);
      held.swap(held_);
    }
    for (const auto& done : held) done(error);
  }
  // Whether it is asked something within 20 s.
  bool IsAsked() const {
    const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
    absl::MutexLock lock(&mutex_);
    while (held_.empty() && MonotonicNow() < deadline) asked_.WaitWithTimeout(&mutex_, deadline - MonotonicNow());
    return !held_.empty();
  }

  // How many questions it holds.
  size_t held() const {
    absl::MutexLock lock(&mutex_);
    return held_.size();
  }

  std::string address() const override { return "unix:/held"; }
  void Ips(const node::v1::StatusRequest&, absl::Time, controller::Done<std::vector<std::string>> done) override {
    Hold(std::move(done));
  }
  void Status(const node::v1::StatusRequest&, absl::Time, controller::Done<node::v1::StatusReply> done) override {
    Hold(std::move(done));
  }
  void Lookup(const node::v1::LookupRequest&, absl::Time, controller::Done<node::v1::LookupReply> done) override {
    Hold(std::move(done));
  }
  void Clear(const node::v1::ClearRequest&, absl::Time, controller::Done<node::v1::Job> done) override {
    Hold(std::move(done));
  }
  void ClearPrompt(const node::v1::ClearPromptRequest&, absl::Time,
                   controller::Done<node::v1::PromptJobsReply> done) override {
    Hold(std::move(done));
  }
  void Move(const node::v1::MoveRequest&, absl::Time, controller::Done<node::v1::PromptJobsReply> done) override {
    Hold(std::move(done));
  }
  void Prefetch(const node::v1::PrefetchRequest&, absl::Time, controller::Done<node::v1::PromptJobsReply> done) override {
    Hold(std::move(done));
  }
  void Compress(const node::v1::CompressRequest&, absl::Time, controller::Done<node::v1::PromptJobsReply> done) override {
    Hold(std::move(done));
  }
  void Decompress(const node::v1::DecompressRequest&, absl::Time,
                  controller::Done<node::v1::PromptJobsReply> done) override {
    Hold(std::move(done));
  }
  void AddPin(const node::v1::AddPinRequest&, absl::Time, controller::Done<node::v1::AddPinReply> done) override {
    Hold(std::move(done));
  }
  void ListPins(const node::v1::ListPinsRequest&, absl::Time, controller::Done<node::v1::ListPinsReply> done) override {
    Hold(std::move(done));
  }
  void RemovePin(const node::v1::RemovePinRequest&, absl::Time, controller::Done<node::v1::Pin> done) override {
    Hold(std::move(done));
  }
  void ListJobs(const node::v1::ListJobsRequest&, absl::Time, controller::Done<node::v1::ListJobsReply> done) override {
    Hold(std::move(done));
  }
  void CancelJob(const node::v1::CancelJobRequest&, absl::Time, controller::Done<node::v1::Job> done) override {
    Hold(std::move(done));
  }

 private:
  template <class Reply>
  void Hold(controller::Done<Reply> done) {
    absl::MutexLock lock(&mutex_);
    held_.push_back([done = std::move(done)](absl::Status error) { done(std::move(error)); });
    asked_.SignalAll();
  }

  mutable absl::Mutex mutex_;
  mutable absl::CondVar asked_;
  std::vector<std::function<void(absl::Status)>> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvist

#endif  // KVIST_TESTS_UNIT_CONTROLLER_HELD_NODE_H_
