#include "daemon/endpoint/credentials.h"

#include <grpc/support/log.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/channel_arguments.h>

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"

namespace kvist::endpoint {
namespace {

constexpr unsigned kLookEverySeconds = 1;
// A server that is away is looked for again only after its name has been resolved again, by gRPC's default half a minute later.
constexpr int kResolveAgainMillis = 1000;

std::shared_ptr<grpc::experimental::CertificateProviderInterface> Watch(const TlsFiles& files) {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(files.key, files.certificate, files.ca,
                                                                              kLookEverySeconds);
}

std::atomic<void (*)(const char*)> hears{nullptr};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> TlsServerCredentials(const TlsFiles& files) {
  grpc::experimental::TlsServerCredentialsOptions options(Watch(files));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::Channel> OpenTlsChannel(const Address& to, const TlsFiles& files,
                                              const grpc::ChannelArguments& arguments) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(files));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  // Whether the certificate is of this host is checked by default. Brackets have no place in a URI's path.
  const std::string host = to.host.find(':') == std::string::npos ? to.host : absl::StrCat("%5B", to.host, "%5D");
  grpc::ChannelArguments with(arguments);
  with.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kResolveAgainMillis);
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", host, ":", to.port), grpc::experimental::TlsCredentials(options),
                                   with);
}

void HearGrpc(void (*say)(const char* text)) {
  hears = say;
  gpr_set_log_function([](gpr_log_func_args* line) {
    if (const auto to = hears.load()) to(line->message);
  });
}

}  // namespace kvist::endpoint
