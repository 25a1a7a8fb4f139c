#ifndef KVIST_DAEMON_ENDPOINT_CREDENTIALS_H_
#define KVIST_DAEMON_ENDPOINT_CREDENTIALS_H_

#include <memory>

#include "daemon/endpoint/address.h"
#include "daemon/endpoint/tls_files.h"

namespace grpc {
class Channel;
class ChannelArguments;
class ServerCredentials;
}  // namespace grpc

namespace kvist::endpoint {

// Mutual TLS, 1.2 at least: whoever connects without a certificate of files.ca's gets no connection. The files are read again every second, and
// connections made after that have what stands there then; files that can't be read change nothing, and a key that isn't its certificate's costs the
// connections until it is: so a process that lasts gives TlsFilesInForce's. `files` have passed CheckTlsFiles.
std::shared_ptr<grpc::ServerCredentials> TlsServerCredentials(const TlsFiles& files);

// A channel to `to`, which is_tls(), by the same rules; the server's certificate has to be of the address's host. It connects when it is used.
std::shared_ptr<grpc::Channel> OpenTlsChannel(const Address& to, const TlsFiles& files,
                                              const grpc::ChannelArguments& arguments);

// What gRPC has to say of its own, such as of each handshake that fails, goes to `say` from now on, not to stderr. For the whole process,
// while it exits, too: `say` uses nothing that exit() destroys.
void HearGrpc(void (*say)(const char* text));

}  // namespace kvist::endpoint

#endif  // KVIST_DAEMON_ENDPOINT_CREDENTIALS_H_
