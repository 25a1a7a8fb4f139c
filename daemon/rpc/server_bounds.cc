#include "daemon/rpc/server_bounds.h"

#include <grpcpp/grpcpp.h>

namespace kvist::rpc {

void BoundServer(const ServerBounds& bounds, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(bounds.request_bytes_max);
  builder->SetResourceQuota(grpc::ResourceQuota(bounds.name).SetMaxThreads(bounds.threads_max));
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

}  // namespace kvist::rpc
