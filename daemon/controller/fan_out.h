#ifndef KVIST_DAEMON_CONTROLLER_FAN_OUT_H_
#define KVIST_DAEMON_CONTROLLER_FAN_OUT_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/controller/node_api.h"
#include "daemon/controller/nodes.h"
#include "storage/base/clock.h"

namespace kvist::controller {

template <class Request, class Reply>
using NodeCall = void (NodeApi::*)(const Request& request, absl::Time deadline, Done<Reply> done);

// A question to one node. Several may be asked the same one.
template <class Request>
struct Question {
  const NamedNode* node = nullptr;
  std::shared_ptr<const Request> request;
};

template <class Request>
std::vector<Question<Request>> SameOf(const std::vector<const NamedNode*>& nodes, Request request) {
  const auto shared = std::make_shared<const Request>(std::move(request));
  std::vector<Question<Request>> questions;
  for (const NamedNode* node : nodes) questions.push_back({node, shared});
  return questions;
}

// Asks all at once, and waits until each has answered, or `deadline` (monotonic clock) is over.
//
// Shape:   answers [question]; DeadlineExceeded for those that didn't come. What comes later is dropped.
// Threads: any; waits on the caller's. Bounded by the deadline and what a node in this process takes beyond it.
template <class Request, class Reply>
std::vector<absl::StatusOr<Reply>> AskAll(const std::vector<Question<Request>>& questions, NodeCall<Request, Reply> call,
                                          absl::Time deadline) {
  struct Round {
    explicit Round(size_t size) : missing(size), answers(size) {}
    absl::Mutex mutex;
    absl::CondVar came;  // the last one
    size_t missing ABSL_GUARDED_BY(mutex);
    std::vector<std::optional<absl::StatusOr<Reply>>> answers ABSL_GUARDED_BY(mutex);
  };
  // A node's own clock ends the call; this much later nobody waits for its word any more.
  constexpr absl::Duration kGrace = absl::Milliseconds(100);

  const auto round = std::make_shared<Round>(questions.size());
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question<Request>& question = questions[i];
    (question.node->api.get()->*call)(*question.request, deadline,
                                      [round, i, request = question.request](absl::StatusOr<Reply> answer) {
                                        absl::MutexLock lock(&round->mutex);
                                        if (round->answers[i].has_value()) return;
                                        round->answers[i] = std::move(answer);
                                        if (--round->missing == 0) round->came.Signal();
                                      });
  }
  std::vector<absl::StatusOr<Reply>> answers;
  absl::MutexLock lock(&round->mutex);
  // Not Await: ThreadSanitizer sees what CondVar orders only (tests/support/tsan_abseil.cc).
  const absl::Time end = deadline + kGrace;
  while (round->missing > 0 && MonotonicNow() < end) round->came.WaitWithTimeout(&round->mutex, end - MonotonicNow());
  for (std::optional<absl::StatusOr<Reply>>& answer : round->answers) {
    if (!answer.has_value()) answer = absl::DeadlineExceededError("no answer in time");
    answers.push_back(*std::move(answer));
  }
  return answers;
}

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_FAN_OUT_H_
