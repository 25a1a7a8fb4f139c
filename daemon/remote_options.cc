#include "daemon/remote_options.h"

#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/remote_url.h"
#include "storage/base/kept_file.h"
#include "storage/base/private_file.h"
#include "storage/base/status.h"
#include "storage/remote/directory_store.h"
#include "storage/remote/redis_store.h"
#include "storage/remote/s3_store.h"
#include "toml++/toml.h"

namespace kvist::daemon {
namespace {

// Above what the core lets be under way (RemoteTier::Options::reading, CoreOptions::Remote::writing), with chunks as large as they come.
constexpr remote::Limits kLimits{.operations = 65536, .bytes = GiB(1)};

absl::Status MakeSecret(const std::string& path) {
  remote::Secret secret{};
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    return ErrnoStatus("getrandom", errno);
  const std::string text =
      absl::StrCat(absl::BytesToHexString({reinterpret_cast<const char*>(secret.data()), secret.size()}), "\n");
  return KeepFile(path, text);
}

struct Credentials {
  std::string user, password, access_key, secret_key, session_token;
};

absl::StatusOr<Credentials> ReadCredentials(const std::string& path) {
  Credentials credentials;
  if (path.empty()) return credentials;
  KVIST_ASSIGN_OR_RETURN(const std::string text, ReadPrivateFile("remote.credentials_file", path));
  const std::map<std::string, std::string*, std::less<>> fields = {{"user", &credentials.user},
                                                                   {"password", &credentials.password},
                                                                   {"access_key", &credentials.access_key},
                                                                   {"secret_key", &credentials.secret_key},
                                                                   {"session_token", &credentials.session_token}};
  const auto wrong = [&](absl::string_view what) {  // never what stands there
    return absl::InvalidArgumentError(absl::StrCat("remote.credentials_file: ", path, ": ", what,
                                                   "; allowed: user, password, access_key, secret_key and "
                                                   "session_token, each = \"...\""));
  };
  try {
    const toml::table table = toml::parse(text);
    for (const auto& [name, node] : table) {
      const auto field = fields.find(std::string_view(name.str()));
      const auto value = node.value<std::string>();
      if (field == fields.end() || !value.has_value()) return wrong(absl::StrCat("key ", std::string(name.str())));
      *field->second = *value;
    }
  } catch (const toml::parse_error& error) { return wrong(absl::StrCat("line ", error.source().begin.line, " isn't TOML")); }
  return credentials;
}

absl::StatusOr<std::unique_ptr<remote::RemoteStore>> OpenRedis(const Options::Remote& options, const RemoteUrl& url,
                                                               Credentials credentials) {
  remote::RedisOptions redis;
  redis.address = url.address;
  redis.database = url.database;
  redis.user = std::move(credentials.user);
  redis.password = std::move(credentials.password);
  redis.tls.enabled = url.tls;
  redis.tls.ca_file = options.ca_file;
  redis.expire_after = options.expire_after;
  redis.limits = kLimits;
  return remote::RedisStore::Create(redis);
}

absl::StatusOr<std::unique_ptr<remote::RemoteStore>> OpenS3(const Options::Remote& options, const RemoteUrl& url,
                                                            Credentials credentials) {
  if (credentials.access_key.empty() || credentials.secret_key.empty())
    return absl::InvalidArgumentError("remote.credentials_file: S3 wants access_key and secret_key");
  remote::S3Options s3;
  s3.bucket = url.bucket;
  s3.prefix = url.prefix;
  s3.region = options.s3_region;
  s3.endpoint =
      options.s3_endpoint.empty() ? absl::StrCat("https://s3.", options.s3_region, ".amazonaws.com") : options.s3_endpoint;
  s3.path_style = options.s3_path_style;
  s3.limits = kLimits;
  s3.ca_file = options.ca_file;
  s3.credentials = {credentials.access_key, credentials.secret_key, credentials.session_token};
  return remote::S3Store::Create(s3);
}

absl::StatusOr<std::unique_ptr<remote::RemoteStore>> OpenStore(const Options::Remote& options, const RemoteUrl& url) {
  KVIST_ASSIGN_OR_RETURN(Credentials credentials, ReadCredentials(options.credentials_file));
  switch (url.kind) {
    case RemoteUrl::Kind::kRedis: return OpenRedis(options, url, std::move(credentials));
    case RemoteUrl::Kind::kS3: return OpenS3(options, url, std::move(credentials));
    case RemoteUrl::Kind::kDirectory: break;
  }
  remote::DirectoryOptions directory;
  directory.directory = url.directory;
  directory.limits = kLimits;
  return remote::DirectoryStore::Create(directory);
}

}  // namespace

absl::StatusOr<remote::Secret> ReadSecret(const std::string& path, bool make) {
  if (make && ::access(path.c_str(), F_OK) != 0 && errno == ENOENT) KVIST_RETURN_IF_ERROR(MakeSecret(path));
  KVIST_ASSIGN_OR_RETURN(const std::string text, ReadPrivateFile("remote.secret_file", path));
  const absl::string_view hex = absl::StripAsciiWhitespace(text);
  remote::Secret secret{};
  const bool is_hex = hex.size() == 2 * secret.size() && std::all_of(hex.begin(), hex.end(), [](char c) {
                        return absl::ascii_isxdigit(static_cast<unsigned char>(c));
                      });
  if (!is_hex) {
    return absl::InvalidArgumentError(
        absl::StrCat("remote.secret_file: ", path,
                     " isn't a secret; allowed: 64 hexadecimal digits, as `openssl rand -hex 32` makes them"));
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), secret.begin());
  return secret;
}

absl::StatusOr<std::unique_ptr<RemoteTier>> OpenRemoteTier(const Options& options) {
  const Options::Remote& remote = options.remote;
  KVIST_ASSIGN_OR_RETURN(const RemoteUrl url, RemoteUrl::Parse(remote.store));
  RemoteTier::Options tier;
  tier.name = remote.name;
  tier.where = remote.store;
  tier.ask_for = remote.lookup_wait;
  tier.read_for = remote.read_timeout;
  tier.write_for = remote.write_timeout;
  tier.checksums = options.pool.verify == "always";
  tier.generations = absl::StrCat(options.daemon.state_dir, "/remote.", remote.name, ".generations");
  tier.guard.rate.bytes_per_second = remote.rate;
  tier.guard.limits = kLimits;
  // A question that was given less says nothing of the store when it isn't answered.
  tier.guard.patience =
      std::min({tier.guard.patience, remote.lookup_wait / 2, remote.read_timeout / 2, remote.write_timeout / 2});
  tier.sealing.encrypt = remote.encrypt;
  tier.codec = codec::MethodNamed(remote.codec);
  const bool own = remote.secret_file.empty();
  const std::string secret_file = own ? absl::StrCat(options.daemon.state_dir, "/remote.secret") : remote.secret_file;
  KVIST_ASSIGN_OR_RETURN(tier.sealing.secret, ReadSecret(secret_file, own));
  if (own) {
    spdlog::info(
        "what this node stores in remote:{} is found by this node only, unless remote.secret_file is {} on others, too",
        remote.name, secret_file);
  }
  KVIST_ASSIGN_OR_RETURN(std::unique_ptr<remote::RemoteStore> store, OpenStore(remote, url));
  return RemoteTier::Open(std::move(tier), std::move(store));
}

}  // namespace kvist::daemon
