#ifndef KVIST_DAEMON_REMOTE_OPTIONS_H_
#define KVIST_DAEMON_REMOTE_OPTIONS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/options.h"
#include "daemon/remote_tier.h"

namespace kvist::daemon {

// The tier beyond the node that [remote] describes, with the secrets that its files hold; options.remote.store isn't empty.
//
// A credentials file is TOML: `user` and `password` for Redis, `access_key`, `secret_key` and `session_token` for S3. Neither it nor the secret
// may be readable by other users.
// Errors: InvalidArgument  names the key, the file and what is wrong.  FailedPrecondition  others may read a file.  Those of files.
absl::StatusOr<std::unique_ptr<RemoteTier>> OpenRemoteTier(const Options& options);

// The secret in `path`; made there when it isn't, and `make`.
absl::StatusOr<remote::Secret> ReadSecret(const std::string& path, bool make);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_REMOTE_OPTIONS_H_
