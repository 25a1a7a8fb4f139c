#ifndef KVIST_DAEMON_CTL_CONTROLLER_CLIENT_H_
#define KVIST_DAEMON_CTL_CONTROLLER_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/ctl/target.h"
#include "proto/controller.pb.h"

namespace kvist::ctl {

// The API of a kvist-controller, or of a kvistd as the controller of itself: proto/controller.proto. Threads, times and errors are as of NodeClient.
class ControllerClient {
 public:
  static absl::StatusOr<ControllerClient> Connect(const Target& target);
  ControllerClient(ControllerClient&&) noexcept;
  ControllerClient& operator=(ControllerClient&&) noexcept;
  ~ControllerClient();

  absl::StatusOr<controller::v1::LookupReply> Ask(const controller::v1::LookupRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::QueryIpReply> Ask(const controller::v1::QueryIpRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::JobsReply> Ask(const controller::v1::MoveRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::JobsReply> Ask(const controller::v1::PrefetchRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::JobsReply> Ask(const controller::v1::ClearRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::JobsReply> Ask(const controller::v1::CompressRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::JobsReply> Ask(const controller::v1::DecompressRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::PinReply> Ask(const controller::v1::PinRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::PinnedPrompt> Ask(const controller::v1::UnpinRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::HealthReply> Ask(const controller::v1::HealthRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::Job> Ask(const controller::v1::GetJobRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::Job> Ask(const controller::v1::CancelJobRequest& request, absl::Duration timeout);
  absl::StatusOr<controller::v1::ListJobsReply> Ask(const controller::v1::ListJobsRequest& request, absl::Duration timeout);
  // All pages as one; `timeout` is each page's, and the list has 100 times that.
  absl::StatusOr<controller::v1::ListPinsReply> Ask(controller::v1::ListPinsRequest request, absl::Duration timeout);

 private:
  struct State;
  explicit ControllerClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_CONTROLLER_CLIENT_H_
