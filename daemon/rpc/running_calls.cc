#include "daemon/rpc/running_calls.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/interceptor.h>
#include <grpcpp/support/server_interceptor.h>
#include <spdlog/spdlog.h>

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/rpc/role_check.h"
#include "daemon/rpc/roles.h"

namespace kvist::rpc {

class RunningCalls::State {
 public:
  explicit State(Options options) : options_(std::move(options)) {}

  void Begins(const std::string& peer) const { options_.begins(peer); }

  void Streams(const Call* call, grpc_call* of_grpc, std::vector<std::string> names, std::string path) {
    const Stream stream{of_grpc, std::move(names), std::move(path)};
    {
      const absl::MutexLock lock(&mutex_);
      streams_.emplace(call, stream);
    }
    Ask(stream);  // its role may have been taken away since it was asked for
  }

  void Ends(const Call* call) {
    const absl::MutexLock lock(&mutex_);
    streams_.erase(call);
  }

  void AskAgain() {
    std::vector<Stream> streams;
    {
      const absl::MutexLock lock(&mutex_);
      for (const auto& [call, stream] : streams_) {
        grpc_call_ref(stream.call);  // it may end while we ask
        streams.push_back(stream);
      }
    }
    for (const Stream& stream : streams) {
      Ask(stream);
      grpc_call_unref(stream.call);
    }
  }

 private:
  struct Stream {
    grpc_call* call;  // the server's; ours to use until Ends
    std::vector<std::string> names;
    std::string path;
  };

  // Not under the lock: gRPC may end the call on this thread.
  void Ask(const Stream& stream) const {
    if (options_.may(stream.names, stream.path)) return;
    spdlog::info("{} may call {} no more: what it watches ends", WhoIs(stream.names), stream.path);
    grpc_call_cancel_with_status(stream.call, GRPC_STATUS_PERMISSION_DENIED, "the role for it was taken away", nullptr);
  }

  const Options options_;
  absl::Mutex mutex_;
  std::map<const Call*, Stream> streams_ ABSL_GUARDED_BY(mutex_);
};

class RunningCalls::Call final : public grpc::experimental::Interceptor {
 public:
  Call(grpc::experimental::ServerRpcInfo* info, State* state) : info_(info), state_(state) {}
  ~Call() override { End(); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    using grpc::experimental::InterceptionHookPoints;
    // Earlier the context knows neither the client nor its call, after the status it may be gone.
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) Begin();
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) End();
    batch->Proceed();
  }

 private:
  void Begin() {
    grpc::ServerContextBase* const context = info_->server_context();
    state_->Begins(context->peer());
    if (info_->type() == grpc::experimental::ServerRpcInfo::Type::UNARY) return;
    streams_ = true;
    state_->Streams(this, context->c_call(), NamesOf(*context->auth_context()), info_->method());
  }
  void End() {
    if (std::exchange(streams_, false)) state_->Ends(this);
  }

  grpc::experimental::ServerRpcInfo* const info_;
  State* const state_;
  bool streams_ = false;
};

class RunningCalls::Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(State* state) : state_(state) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new Call(info, state_);
  }

 private:
  State* const state_;
};

RunningCalls::RunningCalls(Options options) : state_(std::make_unique<State>(std::move(options))) {}
RunningCalls::~RunningCalls() = default;

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> RunningCalls::Watch() {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<Factory>(state_.get()));
  return factories;
}

void RunningCalls::AskAgain() { state_->AskAgain(); }

}  // namespace kvist::rpc
