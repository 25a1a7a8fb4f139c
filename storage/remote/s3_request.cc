#include "storage/remote/s3_request.h"

#include <curl/curl.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "storage/base/check.h"

namespace kvist::remote {
namespace {

constexpr size_t kTextMax = 64 << 10;

uint64_t LengthOf(const S3HttpRequest::Body& body) { return body[0].size() + body[1].size(); }

std::string Sha256Of(const S3HttpRequest::Body& body) {
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
  KVIST_CHECK(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1);
  for (const auto& part : body) KVIST_CHECK(EVP_DigestUpdate(context, part.data(), part.size()) == 1);
  unsigned char digest[32];
  unsigned int length = 0;
  KVIST_CHECK(EVP_DigestFinal_ex(context, digest, &length) == 1);
  EVP_MD_CTX_free(context);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), length});
}

}  // namespace

std::string ElementOf(const std::string& xml, const std::string& name) {
  const std::string open = absl::StrCat("<", name, ">");
  const size_t begin = xml.find(open);
  if (begin == std::string::npos) return {};
  const size_t end = xml.find(absl::StrCat("</", name, ">"), begin + open.size());
  return end == std::string::npos ? std::string() : xml.substr(begin + open.size(), end - begin - open.size());
}

S3HttpRequest::S3HttpRequest(const S3Options* options, const S3Place* place, S3Request request, Body body, Into into)
    : options_(options), place_(place), request_(std::move(request)), body_(body), into_(into) {
  request_.host = place->host;
  request_.path = absl::StrCat(place->path, options->prefix, request_.path);
}

S3HttpRequest::~S3HttpRequest() {
  if (handle_ != nullptr) curl_easy_cleanup(handle_);
  curl_slist_free_all(static_cast<curl_slist*>(headers_));
}

void* S3HttpRequest::Begin(absl::Duration time_max) {
  // A new one each time, and connections are the multi handle's: one of which the name wasn't found keeps its buffer, reset or not, and
  // takes no CURLOPT_BUFFERSIZE any more (7.88).
  if (handle_ != nullptr) curl_easy_cleanup(handle_);
  handle_ = curl_easy_init();
  KVIST_CHECK(handle_ != nullptr);
  curl_slist_free_all(static_cast<curl_slist*>(headers_));
  headers_ = nullptr;
  sent_ = received_ = 0;
  http_ = 0;
  total_.reset();
  too_long_ = false;
  etag_.clear();
  text_.clear();
  if (request_.payload_sha256.empty()) request_.payload_sha256 = Sha256Of(body_);
  Sign(options_->credentials, {options_->region, "s3", true},
       absl::FormatTime("%Y%m%d%ET%H%M%SZ", absl::Now(), absl::UTCTimeZone()), &request_);
  curl_slist* headers = curl_slist_append(nullptr, "expect:");
  for (const auto& [name, value] : request_.headers)
    headers = curl_slist_append(headers, absl::StrCat(name, ": ", value).c_str());
  headers_ = headers;
  const std::string query = CanonicalQuery(request_.query);
  const std::string url =
      absl::StrCat(place_->scheme, "://", request_.host, UriEncode(request_.path, true), query.empty() ? "" : "?", query);
  const auto set = [this](CURLoption option, auto value) {
    KVIST_CHECK(curl_easy_setopt(handle_, option, value) == CURLE_OK);
  };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_PROXY, "");  // a daemon's environment shouldn't decide where KV goes
  set(CURLOPT_NOSIGNAL, 1L);
  // Taken out while its name is looked up, it leaves libcurl's thread to itself instead of waiting for it.
  set(CURLOPT_QUICK_EXIT, 1L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(options_->connect_timeout)));
  set(CURLOPT_BUFFERSIZE, 512L << 10);
  set(CURLOPT_UPLOAD_BUFFERSIZE, 1L << 20);
  if (!options_->ca_file.empty()) {
    set(CURLOPT_CAINFO, options_->ca_file.c_str());
    set(CURLOPT_CAPATH, static_cast<char*>(nullptr));  // Debian's libcurl believes /etc/ssl/certs besides
  }
  set(CURLOPT_HTTPHEADER, headers);
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(time_max)));
  set(CURLOPT_WRITEFUNCTION, &OnWrite);
  set(CURLOPT_WRITEDATA, static_cast<void*>(this));
  set(CURLOPT_HEADERFUNCTION, &OnHeader);
  set(CURLOPT_HEADERDATA, static_cast<void*>(this));
  if (request_.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (request_.method == "PUT" || request_.method == "POST") {
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_READFUNCTION, &OnRead);
    set(CURLOPT_READDATA, static_cast<void*>(this));
    set(CURLOPT_SEEKFUNCTION, &OnSeek);
    set(CURLOPT_SEEKDATA, static_cast<void*>(this));
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(LengthOf(body_)));
    set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
  } else {
    set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
  }
  return handle_;
}

size_t S3HttpRequest::OnWrite(char* data, size_t size, size_t count, void* self) {
  auto* const request = static_cast<S3HttpRequest*>(self);
  const size_t bytes = size * count;
  curl_easy_getinfo(request->handle_, CURLINFO_RESPONSE_CODE, &request->http_);
  if (request->request_.method != "GET" || request->http_ / 100 != 2) {
    request->text_.append(data, std::min(bytes, kTextMax - std::min(kTextMax, request->text_.size())));
    return bytes;
  }
  size_t left = bytes;
  uint64_t at = request->received_;
  for (const auto& part : request->into_) {
    if (at < part.size()) {
      const size_t n = std::min<uint64_t>(left, part.size() - at);
      std::memcpy(part.data() + at, data + (bytes - left), n);
      left -= n;
      at += n;
    }
    at -= std::min<uint64_t>(at, part.size());
  }
  request->received_ += bytes - left;
  request->too_long_ = left > 0;
  return bytes - left;  // less than all of it ends the request
}

size_t S3HttpRequest::OnRead(char* data, size_t size, size_t count, void* self) {
  auto* const request = static_cast<S3HttpRequest*>(self);
  size_t given = 0;
  uint64_t at = request->sent_;
  for (const auto& part : request->body_) {
    if (at < part.size()) {
      const size_t n = std::min<uint64_t>(size * count - given, part.size() - at);
      std::memcpy(data + given, part.data() + at, n);
      given += n;
      at += n;
    }
    at -= std::min<uint64_t>(at, part.size());
  }
  request->sent_ += given;
  return given;
}

int S3HttpRequest::OnSeek(void* self, int64_t offset, int origin) {
  if (origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
  static_cast<S3HttpRequest*>(self)->sent_ = static_cast<uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

size_t S3HttpRequest::OnHeader(char* data, size_t size, size_t count, void* self) {
  auto* const request = static_cast<S3HttpRequest*>(self);
  const absl::string_view line(data, size * count);
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos) return line.size();
  const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
  absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  if (name == "etag") request->etag_ = std::string(value.substr(0, 256));
  uint64_t total = 0;
  if (name == "content-range" && absl::SimpleAtoi(value.substr(value.find('/') + 1), &total)) request->total_ = total;
  return line.size();
}

absl::Status S3HttpRequest::StatusOf(int code) const {
  long http = 0;
  if (handle_ != nullptr) curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &http);
  if (code != CURLE_OK) return absl::UnavailableError(absl::StrCat("s3: ", curl_easy_strerror(static_cast<CURLcode>(code))));
  if (http / 100 == 2) return absl::OkStatus();
  // No more of the answer: where a signature is wrong it says again what was signed, session tokens and all.
  const std::string text = absl::StrCat("s3: ", request_.method, " ended with ", http, " ",
                                        absl::CEscape(ElementOf(text_, "Code").substr(0, 100)), " ",
                                        absl::CEscape(ElementOf(text_, "Message").substr(0, 300)));
  switch (http) {
    case 404: return absl::NotFoundError(text);
    case 401:
    case 403:
      return absl::PermissionDeniedError(request_.method == "GET" || request_.method == "HEAD"
                                             ? absl::StrCat(text, " (or it isn't there, and s3:ListBucket isn't allowed)")
                                             : text);
    case 416: return absl::OutOfRangeError(text);
    case 507: return absl::ResourceExhaustedError(text);
    case 408:
    case 409:
    case 429: return absl::UnavailableError(text);
    default: return http / 100 == 5 ? absl::UnavailableError(text) : absl::FailedPreconditionError(text);
  }
}

}  // namespace kvist::remote
