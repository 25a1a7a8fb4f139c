#ifndef KVIST_STORAGE_REMOTE_SIGV4_H_
#define KVIST_STORAGE_REMOTE_SIGV4_H_

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Signatures of requests by AWS's Signature Version 4, as S3 and what speaks its language want them. Pure: no clock, no network.
namespace kvist::remote {

struct S3Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // of temporary ones; empty: none
};

// A request that is to be signed. Paths, names and values as they are meant, not encoded.
struct S3Request {
  std::string method;  // "GET"
  std::string host;    // as in the Host header, with the port when it isn't the protocol's
  std::string path;    // begins with '/'
  std::vector<std::pair<std::string, std::string>> query;
  std::map<std::string, std::string> headers;  // names in small letters, without host and what Sign adds
  std::string payload_sha256;                  // hexadecimal, of the body
};

struct S3Scope {
  std::string region = "us-east-1";
  std::string service = "s3";
  // false: for a service that isn't S3, whose paths are encoded twice and whose requests don't carry the payload's digest.
  bool is_s3 = true;
};

// SHA-256 in hexadecimal digits. Threads: any.
std::string Sha256Hex(std::string_view bytes);

// As in URLs: all but letters, digits, '-', '.', '_' and '~', and '/' where that is kept, as %XX.
std::string UriEncode(std::string_view text, bool keep_slash);
// "a=1&b=2", encoded, in the order in which it is signed.
std::string CanonicalQuery(const std::vector<std::pair<std::string, std::string>>& query);
// What is hashed and signed: for tests, and for whoever wants to know why a server says that the signature is wrong.
std::string CanonicalRequest(const S3Request& request, const S3Scope& scope);

// Adds x-amz-date, x-amz-content-sha256, x-amz-security-token and authorization to the request's headers.
// `time`: "20130524T000000Z".
void Sign(const S3Credentials& credentials, const S3Scope& scope, const std::string& time, S3Request* request);

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_SIGV4_H_
