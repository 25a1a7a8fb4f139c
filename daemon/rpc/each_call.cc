#include "daemon/rpc/each_call.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/interceptor.h>
#include <grpcpp/support/server_interceptor.h>

#include <utility>

namespace kvist::rpc {
namespace {

using Begins = std::function<void(const std::string&)>;
using grpc::experimental::InterceptionHookPoints;

class Call final : public grpc::experimental::Interceptor {
 public:
  Call(grpc::experimental::ServerRpcInfo* info, const Begins* begins) : info_(info), begins_(begins) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    // Earlier the context knows no peer.
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA))
      (*begins_)(info_->server_context()->peer());
    batch->Proceed();
  }

 private:
  grpc::experimental::ServerRpcInfo* info_;
  const Begins* begins_;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(Begins begins) : begins_(std::move(begins)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new Call(info, &begins_);
  }

 private:
  Begins begins_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> EachCall(Begins begins) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<Factory>(std::move(begins)));
  return factories;
}

}  // namespace kvist::rpc
