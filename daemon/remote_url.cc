#include "daemon/remote_url.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvist::daemon {
namespace {

constexpr uint32_t kRedisPort = 6379;
constexpr uint32_t kDatabaseMax = 65535;

absl::Status NotAllowed() {
  return absl::InvalidArgumentError(
      "allowed: \"redis://HOST:PORT[/DATABASE]\", \"rediss://...\" by TLS, \"redis:///PATH/TO/SOCKET\", "
      "\"file:///DIRECTORY\", "
      "\"s3://BUCKET[/PREFIX]\", or \"\" for none; passwords belong in remote.credentials_file");
}

absl::StatusOr<RemoteUrl> Redis(absl::string_view rest, RemoteUrl url) {
  if (absl::StartsWith(rest, "/")) {
    if (url.tls || rest.size() < 2) return NotAllowed();
    url.address = absl::StrCat("unix:", rest);
    return url;
  }
  if (const size_t slash = rest.find('/'); slash != absl::string_view::npos) {
    const absl::string_view database = rest.substr(slash + 1);
    if (!database.empty() && (!absl::SimpleAtoi(database, &url.database) || url.database > kDatabaseMax))
      return NotAllowed();
    rest = rest.substr(0, slash);
  }
  if (rest.empty() || rest == ":") return NotAllowed();
  const size_t colon = rest.rfind(':');
  const bool bracket = absl::StartsWith(rest, "[");
  const bool has_port = colon != absl::string_view::npos && (!bracket || rest[colon - 1] == ']');
  url.address = has_port ? std::string(rest) : absl::StrCat(rest, ":", kRedisPort);
  return url;
}

}  // namespace

absl::StatusOr<RemoteUrl> RemoteUrl::Parse(absl::string_view text) {
  RemoteUrl url;
  const bool plain =
      std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (!plain || absl::StrContains(text, "@")) return NotAllowed();
  if (absl::ConsumePrefix(&text, "redis://")) return Redis(text, std::move(url));
  if (absl::ConsumePrefix(&text, "rediss://")) {
    url.tls = true;
    return Redis(text, std::move(url));
  }
  if (absl::ConsumePrefix(&text, "file://")) {
    if (text.size() < 2 || text[0] != '/') return NotAllowed();
    url.kind = Kind::kDirectory;
    url.directory = std::string(text);
    return url;
  }
  if (!absl::ConsumePrefix(&text, "s3://")) return NotAllowed();
  url.kind = Kind::kS3;
  const size_t slash = std::min(text.find('/'), text.size());
  url.bucket = std::string(text.substr(0, slash));
  url.prefix = std::string(text.substr(std::min(slash + 1, text.size())));
  if (url.prefix.empty()) url.prefix = "kvist";
  if (!absl::EndsWith(url.prefix, "/")) url.prefix += "/";
  if (url.bucket.empty()) return NotAllowed();
  return url;
}

}  // namespace kvist::daemon
