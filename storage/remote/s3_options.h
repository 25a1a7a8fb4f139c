#ifndef KVIST_STORAGE_REMOTE_S3_OPTIONS_H_
#define KVIST_STORAGE_REMOTE_S3_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/base/units.h"
#include "storage/remote/remote_store.h"
#include "storage/remote/sigv4.h"

namespace kvist::remote {

// The credentials have to be allowed s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload, and s3:ListBucket of the bucket:
// without the last one S3 answers 403, not 404, for what isn't there, which is no miss but a failure that opens the breaker.
struct S3Options {
  std::string endpoint = "https://s3.us-east-1.amazonaws.com";  // http or https, host, port; no path
  std::string bucket;
  std::string prefix = "kvist/";  // of all objects' names
  std::string region = "us-east-1";
  S3Credentials credentials;
  bool path_style = false;  // true: the bucket in the path, not in the host's name: what most stores but AWS want
  std::string ca_file;      // whom to believe; empty: whom the system believes
  // What one request carries of a body at most: larger ones are read by ranges and written by multipart, side by side. Larger: fewer requests.
  Bytes part = MiB(8);       // 5 MiB at least, says S3
  uint32_t connections = 8;  // requests at a time that move bytes
  // Questions (IsQuestion) at a time, beside those: a lookup asks for hundreds of objects, one a request, and waits for tens of milliseconds.
  uint32_t question_connections = 32;
  // Requests that fail by a connection or with 429 or 5xx are tried again, so often in all, after a pause that doubles.
  uint32_t attempts = 3;
  absl::Duration pause_min = absl::Milliseconds(50);
  absl::Duration pause_max = absl::Seconds(1);
  absl::Duration connect_timeout = absl::Seconds(2);
  Limits limits;

  absl::Status Validate() const;  // names the field
};

// Where requests go: from the endpoint and the bucket.
struct S3Place {
  std::string scheme;  // "https"
  std::string host;    // as in the Host header
  std::string path;    // of the bucket: "/" or "/bucket/"
};
absl::StatusOr<S3Place> PlaceOf(const S3Options& options);

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_S3_OPTIONS_H_
