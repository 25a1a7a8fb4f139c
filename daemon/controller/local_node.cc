#include "daemon/controller/local_node.h"

#include <string>
#include <utility>
#include <vector>

#include "daemon/controller/own_addresses.h"
#include "daemon/rpc/replies.h"
#include "daemon/rpc/requests.h"
#include "daemon/rpc/space_prefix.h"
#include "storage/base/status.h"

namespace kvist::controller {
namespace {

// What the node says, as a message.
template <class Answer>
auto Said(const absl::StatusOr<Answer>& answer) -> absl::StatusOr<decltype(rpc::ToReply(*answer))> {
  if (!answer.ok()) return answer.status();
  return rpc::ToReply(*answer);
}

// What `ask` (filter, prompt) says of a request on a prompt.
template <class Request, class Ask>
auto OfPrompt(const Request& request, Ask ask) -> decltype(Said(ask(rpc::SpaceFilter(), rpc::Prompt()))) {
  KVIST_ASSIGN_OR_RETURN(const rpc::SpaceFilter filter, rpc::ReadFilter(request.space()));
  KVIST_ASSIGN_OR_RETURN(const rpc::Prompt prompt, rpc::ReadPrompt(request.prompt()));
  return Said(ask(filter, prompt));
}

class LocalNode final : public NodeApi {
 public:
  explicit LocalNode(rpc::NodeControl* control) : control_(*control) {}

  std::string address() const override { return ""; }
  void Ips(const node::v1::StatusRequest&, absl::Time, Done<std::vector<std::string>> done) override {
    done(OwnAddresses());
  }
  void Status(const node::v1::StatusRequest&, absl::Time deadline, Done<node::v1::StatusReply> done) override {
    done(Said(control_.Status(deadline)));
  }
  void Lookup(const node::v1::LookupRequest& request, absl::Time deadline, Done<node::v1::LookupReply> done) override {
    done(OfPrompt(request, [&](const rpc::SpaceFilter& filter, const rpc::Prompt& prompt) {
      return control_.Lookup(filter, prompt, deadline);
    }));
  }
  void Clear(const node::v1::ClearRequest& request, absl::Time deadline, Done<node::v1::Job> done) override {
    done(ClearSpace(request, deadline));
  }
  void ClearPrompt(const node::v1::ClearPromptRequest& request, absl::Time deadline,
                   Done<node::v1::PromptJobsReply> done) override {
    done(OfPrompt(request, [&](const rpc::SpaceFilter& filter, const rpc::Prompt& prompt) {
      return control_.ClearPrompt(filter, prompt, {.tier = request.tier()}, request.request(), deadline);
    }));
  }
  void Move(const node::v1::MoveRequest& request, absl::Time deadline, Done<node::v1::PromptJobsReply> done) override {
    done(StartMove(request, rpc::ReadMove(request), deadline));
  }
  void Prefetch(const node::v1::PrefetchRequest& request, absl::Time deadline,
                Done<node::v1::PromptJobsReply> done) override {
    done(StartMove(request, rpc::ReadPrefetch(request), deadline));
  }
  void Compress(const node::v1::CompressRequest& request, absl::Time deadline,
                Done<node::v1::PromptJobsReply> done) override {
    done(OfPrompt(request, [&](const rpc::SpaceFilter& filter, const rpc::Prompt& prompt) {
      return control_.Recode(filter, prompt, {request.tier(), request.method()}, request.request(), deadline);
    }));
  }
  void Decompress(const node::v1::DecompressRequest& request, absl::Time deadline,
                  Done<node::v1::PromptJobsReply> done) override {
    done(OfPrompt(request, [&](const rpc::SpaceFilter& filter, const rpc::Prompt& prompt) {
      return control_.Recode(filter, prompt, {request.tier(), ""}, request.request(), deadline);
    }));
  }
  void AddPin(const node::v1::AddPinRequest& request, absl::Time deadline, Done<node::v1::AddPinReply> done) override {
    const absl::StatusOr<rpc::PinWish> wish = rpc::ReadPinWish(request);
    if (!wish.ok()) return done(wish.status());
    done(OfPrompt(request, [&](const rpc::SpaceFilter& filter, const rpc::Prompt& prompt) {
      return control_.Pin(filter, prompt, *wish, deadline);
    }));
  }
  void ListPins(const node::v1::ListPinsRequest& request, absl::Time deadline, Done<node::v1::ListPinsReply> done) override {
    done(Said(control_.Pins(request.after(), deadline)));
  }
  void RemovePin(const node::v1::RemovePinRequest& request, absl::Time deadline, Done<node::v1::Pin> done) override {
    done(Said(control_.RemovePin(request.id(), deadline)));
  }
  void ListJobs(const node::v1::ListJobsRequest&, absl::Time deadline, Done<node::v1::ListJobsReply> done) override {
    done(Said(control_.Jobs(deadline)));
  }
  void CancelJob(const node::v1::CancelJobRequest& request, absl::Time deadline, Done<node::v1::Job> done) override {
    done(Said(control_.CancelJob(request.id(), deadline)));
  }

 private:
  absl::StatusOr<node::v1::Job> ClearSpace(const node::v1::ClearRequest& request, absl::Time deadline) {
    std::string space;
    if (!request.space().empty()) {
      KVIST_ASSIGN_OR_RETURN(const rpc::NodeStatus status, control_.Status(deadline));
      KVIST_ASSIGN_OR_RETURN(space, rpc::ResolveSpace(request.space(), status.spaces));
    }
    return Said(control_.Clear({.space = space, .tier = request.tier()}, request.request(), deadline));
  }
  template <class Request>
  absl::StatusOr<node::v1::PromptJobsReply> StartMove(const Request& request, const absl::StatusOr<rpc::MoveWish>& wish,
                                                      absl::Time deadline) {
    if (!wish.ok()) return wish.status();
    return OfPrompt(request, [&](const rpc::SpaceFilter& filter, const rpc::Prompt& prompt) {
      return control_.Move(filter, prompt, *wish, request.request(), deadline);
    });
  }

  rpc::NodeControl& control_;
};

}  // namespace

std::unique_ptr<NodeApi> MakeLocalNode(rpc::NodeControl* control) { return std::make_unique<LocalNode>(control); }

}  // namespace kvist::controller
