#include "daemon/rpc/role_check.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>
#include <spdlog/spdlog.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/endpoint/tls_files.h"
#include "daemon/rpc/grpc_status.h"

namespace kvist::rpc {

std::vector<std::string> NamesOf(const grpc::AuthContext& client) {
  std::vector<std::string> names;
  const std::pair<const char*, absl::string_view> kinds[] = {
      {GRPC_PEER_DNS_PROPERTY_NAME, "dns:"}, {GRPC_PEER_URI_PROPERTY_NAME, "uri:"}, {GRPC_X509_CN_PROPERTY_NAME, "cn:"}};
  for (const auto& [property, kind] : kinds) {
    for (const grpc::string_ref& value : client.FindPropertyValues(property))
      names.push_back(absl::StrCat(kind, absl::string_view(value.data(), value.size())));
  }
  return names;
}

class RoleCheck::Processor final : public grpc::AuthMetadataProcessor {
 public:
  explicit Processor(Roles roles) : roles_(std::make_shared<const Roles>(std::move(roles))) {}

  void Set(Roles roles) {
    auto next = std::make_shared<const Roles>(std::move(roles));
    const absl::MutexLock lock(&mutex_);
    roles_.swap(next);
  }

  bool May(const std::vector<std::string>& names, absl::string_view path) { return MayCall(*Get(), names, path).ok(); }

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* peer, OutputMetadata*, OutputMetadata*) override {
    const auto path = metadata.find(":path");
    if (peer == nullptr || !peer->IsPeerAuthenticated() || path == metadata.end())
      return {grpc::StatusCode::UNAUTHENTICATED, "by TCP a client is known by its certificate"};
    // Neither a connection nor a session that is resumed has its certificate verified again.
    const auto certificate = peer->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
    if (certificate.empty() || endpoint::HasRunOut(std::string(certificate[0].data(), certificate[0].size())))
      return {grpc::StatusCode::UNAUTHENTICATED, "the client's certificate has run out"};
    const absl::string_view call(path->second.data(), path->second.size());
    const std::vector<std::string> names = NamesOf(*peer);
    const absl::Status may = MayCall(*Get(), names, call);
    if (may.ok() && CallRoles().at(call) == Role::kOperate) spdlog::info("{} calls {}", WhoIs(names), std::string(call));
    return ToGrpc(may);
  }

 private:
  std::shared_ptr<const Roles> Get() {
    const absl::MutexLock lock(&mutex_);
    return roles_;
  }

  absl::Mutex mutex_;
  std::shared_ptr<const Roles> roles_ ABSL_GUARDED_BY(mutex_);
};

RoleCheck::RoleCheck(Roles roles) : processor_(std::make_shared<Processor>(std::move(roles))) {}
RoleCheck::~RoleCheck() = default;

void RoleCheck::SetRoles(Roles roles) { processor_->Set(std::move(roles)); }

bool RoleCheck::May(const std::vector<std::string>& names, absl::string_view path) const {
  return processor_->May(names, path);
}

void RoleCheck::Guard(grpc::ServerCredentials& credentials) const { credentials.SetAuthMetadataProcessor(processor_); }

}  // namespace kvist::rpc
