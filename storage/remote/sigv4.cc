#include "storage/remote/sigv4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "storage/base/check.h"

namespace kvist::remote {
namespace {

std::string HmacOf(const std::string& key, const std::string& text) {
  std::array<unsigned char, 32> digest;
  unsigned int length = 0;
  KVIST_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                   reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &length) != nullptr);
  return {reinterpret_cast<const char*>(digest.data()), length};
}

// "  a   b " is signed as "a b".
std::string Trimmed(const std::string& value) {
  std::string trimmed = value;
  absl::RemoveExtraAsciiWhitespace(&trimmed);
  return trimmed;
}

std::map<std::string, std::string> SignedHeaders(const S3Request& request) {
  std::map<std::string, std::string> headers = request.headers;
  headers["host"] = request.host;
  headers.erase("authorization");
  return headers;
}

std::string NamesOf(const std::map<std::string, std::string>& headers) {
  return absl::StrJoin(headers, ";", [](std::string* out, const auto& header) { out->append(header.first); });
}

}  // namespace

std::string Sha256Hex(std::string_view bytes) {
  std::array<unsigned char, 32> digest;
  unsigned int length = 0;
  KVIST_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), length});
}

std::string UriEncode(std::string_view text, bool keep_slash) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && keep_slash)) {
      encoded.push_back(c);
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", byte);
    }
  }
  return encoded;
}

std::string CanonicalQuery(const std::vector<std::pair<std::string, std::string>>& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query) encoded.emplace_back(UriEncode(name, false), UriEncode(value, false));
  std::sort(encoded.begin(), encoded.end());
  return absl::StrJoin(encoded, "&", absl::PairFormatter("="));
}

std::string CanonicalRequest(const S3Request& request, const S3Scope& scope) {
  const auto headers = SignedHeaders(request);
  std::string path = UriEncode(request.path, true);
  if (!scope.is_s3) path = UriEncode(path, true);
  std::string text = absl::StrCat(request.method, "\n", path, "\n", CanonicalQuery(request.query), "\n");
  for (const auto& [name, value] : headers) absl::StrAppend(&text, name, ":", Trimmed(value), "\n");
  absl::StrAppend(&text, "\n", NamesOf(headers), "\n", request.payload_sha256);
  return text;
}

void Sign(const S3Credentials& credentials, const S3Scope& scope, const std::string& time, S3Request* request) {
  request->headers["x-amz-date"] = time;
  if (scope.is_s3) request->headers["x-amz-content-sha256"] = request->payload_sha256;
  if (!credentials.session_token.empty()) request->headers["x-amz-security-token"] = credentials.session_token;
  const std::string day = time.substr(0, 8);
  const std::string where = absl::StrCat(day, "/", scope.region, "/", scope.service, "/aws4_request");
  const std::string text =
      absl::StrCat("AWS4-HMAC-SHA256\n", time, "\n", where, "\n", Sha256Hex(CanonicalRequest(*request, scope)));
  std::string key = absl::StrCat("AWS4", credentials.secret_key);
  for (const std::string& part : {day, scope.region, scope.service, std::string("aws4_request")}) key = HmacOf(key, part);
  const std::string signature = absl::BytesToHexString(HmacOf(key, text));
  const std::string names = NamesOf(SignedHeaders(*request));
  request->headers["authorization"] = absl::StrCat("AWS4-HMAC-SHA256 Credential=", credentials.access_key, "/", where,
                                                   ",SignedHeaders=", names, ",Signature=", signature);
}

}  // namespace kvist::remote
