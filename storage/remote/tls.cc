#include "storage/remote/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <limits>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace kvist::remote {
namespace {

std::string TlsReason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "the server closed the connection";
  char text[256];
  ERR_error_string_n(code, text, sizeof text);
  return text;
}

int AsInt(size_t size) { return static_cast<int>(std::min(size, size_t{std::numeric_limits<int>::max()})); }

}  // namespace

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Create(const TlsOptions& options) {
  SSL_CTX* const raw = SSL_CTX_new(TLS_client_method());
  KVIST_CHECK(raw != nullptr);
  auto context = absl::WrapUnique(new TlsContext(raw));
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  const int trusted = options.ca_file.empty() ? SSL_CTX_set_default_verify_paths(raw)
                                              : SSL_CTX_load_verify_locations(raw, options.ca_file.c_str(), nullptr);
  if (trusted != 1) return absl::InvalidArgumentError(absl::StrCat("tls.ca_file ", options.ca_file, ": ", TlsReason()));
  if (options.cert_file.empty() != options.key_file.empty())
    return absl::InvalidArgumentError("tls.cert_file and tls.key_file: both or none");
  if (!options.cert_file.empty() && (SSL_CTX_use_certificate_chain_file(raw, options.cert_file.c_str()) != 1 ||
                                     SSL_CTX_use_PrivateKey_file(raw, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
                                     SSL_CTX_check_private_key(raw) != 1))
    return absl::InvalidArgumentError(
        absl::StrCat("tls.cert_file ", options.cert_file, ", tls.key_file ", options.key_file, ": ", TlsReason()));
  return context;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

Tls::Tls(const TlsContext& context, int socket, const std::string& name) : ssl_(SSL_new(context.context_)) {
  KVIST_CHECK(!name.empty() && ssl_ != nullptr && SSL_set_fd(ssl_, socket) == 1);
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_), name.c_str()) != 1) {
    SSL_set_tlsext_host_name(ssl_, name.c_str());
    KVIST_CHECK(SSL_set1_host(ssl_, name.c_str()) == 1);
  }
  ERR_clear_error();
}

Tls::~Tls() { SSL_free(ssl_); }

absl::StatusOr<Progress> Tls::Handshake() {
  ERR_clear_error();
  const int result = SSL_connect(ssl_);
  if (result == 1) return Progress{};
  if (const long verified = SSL_get_verify_result(ssl_); verified != X509_V_OK)
    return absl::UnavailableError(
        absl::StrCat("the server's certificate isn't believed: ", X509_verify_cert_error_string(verified)));
  return Ended("TLS handshake", result);
}

absl::StatusOr<Progress> Tls::Read(std::span<std::byte> into) {
  ERR_clear_error();
  const int result = SSL_read(ssl_, into.data(), AsInt(into.size()));
  if (result > 0) return Progress{static_cast<size_t>(result)};
  return Ended("TLS read", result);
}

absl::StatusOr<Progress> Tls::Write(std::span<const std::byte> from) {
  ERR_clear_error();
  const int result = SSL_write(ssl_, from.data(), AsInt(from.size()));
  if (result > 0) return Progress{static_cast<size_t>(result)};
  return Ended("TLS write", result);
}

absl::StatusOr<Progress> Tls::Ended(const char* what, int result) {
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ: return Progress{0, Progress::Waits::kToRead};
    case SSL_ERROR_WANT_WRITE: return Progress{0, Progress::Waits::kToWrite};
    default: return absl::UnavailableError(absl::StrCat(what, ": ", TlsReason()));
  }
}

}  // namespace kvist::remote
