#include "storage/remote/s3_options.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/base/status.h"

namespace kvist::remote {

absl::StatusOr<S3Place> PlaceOf(const S3Options& options) {
  absl::string_view rest = options.endpoint;
  S3Place place;
  for (const absl::string_view scheme : {"https", "http"}) {
    if (!absl::ConsumePrefix(&rest, absl::StrCat(scheme, "://"))) continue;
    place.scheme = std::string(scheme);
    absl::ConsumeSuffix(&rest, "/");
    absl::ConsumeSuffix(&rest, scheme == "https" ? ":443" : ":80");  // clients leave that out of the Host header
    break;
  }
  if (place.scheme.empty() || rest.empty() || rest.find_first_of("/?#@ ") != absl::string_view::npos)
    return absl::InvalidArgumentError(absl::StrCat("endpoint: \"", options.endpoint, "\" isn't http(s)://HOST[:PORT]"));
  place.host = options.path_style ? std::string(rest) : absl::StrCat(options.bucket, ".", rest);
  place.path = options.path_style ? absl::StrCat("/", options.bucket, "/") : "/";
  return place;
}

absl::Status S3Options::Validate() const {
  const auto is_of_bucket = [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) || absl::ascii_isdigit(static_cast<unsigned char>(c)) ||
           c == '-' || c == '.';
  };
  if (bucket.size() < 3 || bucket.size() > 63 || !std::all_of(bucket.begin(), bucket.end(), is_of_bucket))
    return absl::InvalidArgumentError("bucket: 3 to 63 small letters, digits, '-' or '.'");
  if (credentials.access_key.empty() || credentials.secret_key.empty())
    return absl::InvalidArgumentError("credentials: access_key and secret_key");
  if (part < MiB(5) || part > GiB(1)) return absl::InvalidArgumentError("part: 5 MiB to 1 GiB");
  if (connections < 1 || connections > 256) return absl::InvalidArgumentError("connections: 1 to 256");
  if (question_connections < 1 || question_connections > 256)
    return absl::InvalidArgumentError("question_connections: 1 to 256");
  if (attempts < 1 || attempts > 10) return absl::InvalidArgumentError("attempts: 1 to 10");
  if (pause_min <= absl::ZeroDuration() || pause_max < pause_min)
    return absl::InvalidArgumentError("pause_min: above 0 and at most pause_max");
  if (connect_timeout < absl::Milliseconds(1) || connect_timeout > absl::Hours(1))
    return absl::InvalidArgumentError("connect_timeout: 1 ms to 1 h");
  return PlaceOf(*this).status();
}

}  // namespace kvist::remote
