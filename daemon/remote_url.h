#ifndef KVIST_DAEMON_REMOTE_URL_H_
#define KVIST_DAEMON_REMOTE_URL_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvist::daemon {

// A store beyond the node as remote.store names it. Secrets are in files of their own, never here: this is printed and logged.
//
//   redis://HOST:PORT[/DATABASE]    rediss://HOST:PORT[/DATABASE], by TLS    redis:///PATH/TO/SOCKET
//   file:///DIRECTORY               that nodes share
//   s3://BUCKET[/PREFIX]            where that is: remote.s3_endpoint and remote.s3_region
struct RemoteUrl {
  enum class Kind : uint8_t { kRedis, kDirectory, kS3 };
  Kind kind = Kind::kRedis;
  bool tls = false;
  std::string address;    // as storage/remote/net_address.h has it
  uint32_t database = 0;  // of Redis
  std::string directory;  // absolute
  std::string bucket;
  std::string prefix;  // of objects' names in the bucket; "kvist/" when none was given

  // Errors: InvalidArgument, which says what is allowed.
  static absl::StatusOr<RemoteUrl> Parse(absl::string_view text);
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_REMOTE_URL_H_
