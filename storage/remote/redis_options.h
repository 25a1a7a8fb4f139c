#ifndef KVIST_STORAGE_REMOTE_REDIS_OPTIONS_H_
#define KVIST_STORAGE_REMOTE_REDIS_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "storage/base/units.h"
#include "storage/remote/remote_store.h"
#include "storage/remote/tls.h"

namespace kvist::remote {

struct RedisOptions {
  std::string address = "127.0.0.1:6379";  // net_address.h says how it looks
  std::string user;                        // empty: the default user
  std::string password;                    // empty: none is sent
  uint32_t database = 0;
  TlsOptions tls;
  std::string prefix = "kvist:";  // of all keys; no braces, which say what a cluster hashes
  // What a value holds of a body at most; the same on all nodes. Larger: the server is busy longer with one command.
  Bytes part = MiB(2);
  // At most; made when one has more on its way than a socket takes. More: short answers wait less behind long ones
  uint32_t connections = 2;
  // What is asked for and not answered on a connection, at most, or one operation. Larger: more of the server's memory for its replies.
  Bytes window = MiB(16);
  absl::Duration connect_timeout = absl::Seconds(1);  // with TLS and AUTH
  // A connection that owes answers nobody waits for any more is ended when none has come for that long. Shorter: a slow answer costs a new
  // connection sooner.
  absl::Duration linger = absl::Milliseconds(500);
  absl::Duration expire_after = absl::ZeroDuration();  // objects go away by themselves, counted from their put; zero: never
  Limits limits;

  absl::Status Validate() const;  // names the field
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_REDIS_OPTIONS_H_
