#include "storage/remote/redis_options.h"

#include "storage/base/status.h"
#include "storage/remote/net_address.h"

namespace kvist::remote {

absl::Status RedisOptions::Validate() const {
  KVIST_ASSIGN_OR_RETURN(const Endpoint endpoint, Endpoint::Parse(address));
  if (tls.enabled && tls.server_name.empty() && endpoint.host.empty())
    return absl::InvalidArgumentError("tls.server_name: wanted with unix:, which names no host");
  if (!user.empty() && password.empty()) return absl::InvalidArgumentError("password: wanted with user");
  if (prefix.find_first_of("{}\r\n ") != std::string::npos)
    return absl::InvalidArgumentError("prefix: no braces, spaces or line ends");
  if (part < KiB(4) || part > MiB(256)) return absl::InvalidArgumentError("part: 4 KiB to 256 MiB");
  if (connections < 1 || connections > 64) return absl::InvalidArgumentError("connections: 1 to 64");
  if (connect_timeout <= absl::ZeroDuration()) return absl::InvalidArgumentError("connect_timeout: above 0");
  if (linger < absl::ZeroDuration()) return absl::InvalidArgumentError("linger: not below 0");
  if (expire_after != absl::ZeroDuration() && expire_after < absl::Milliseconds(1))
    return absl::InvalidArgumentError("expire_after: zero, or at least 1 ms");
  return absl::OkStatus();
}

}  // namespace kvist::remote
