// The signatures are those that AWS publishes: of its SigV4 test suite, and of the examples in S3's API reference.
#include "storage/remote/sigv4.h"

#include <catch2/catch.hpp>

#include "absl/strings/match.h"

namespace kvist::remote {
namespace {

std::string SignatureOf(const S3Request& request) {
  const std::string& text = request.headers.at("authorization");
  return text.substr(text.find("Signature=") + 10);
}

std::string SuiteSignature(S3Request request) {
  const S3Credentials credentials{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
  request.host = "example.amazonaws.com";
  request.payload_sha256 = Sha256Hex("");
  Sign(credentials, {"us-east-1", "service", false}, "20150830T123600Z", &request);
  return SignatureOf(request);
}

TEST_CASE("Sign signs as AWS's test suite says") {
  CHECK(SuiteSignature({"GET", "", "/", {}, {}, ""}) == "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  CHECK(SuiteSignature({"POST", "", "/", {}, {}, ""}) == "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
  CHECK(SuiteSignature({"GET", "", "/", {{"Param2", "value2"}, {"Param1", "value1"}}, {}, ""}) ==
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
}

std::string S3Signature(S3Request request, const std::string& body) {
  const S3Credentials credentials{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
  request.host = "examplebucket.s3.amazonaws.com";
  request.payload_sha256 = Sha256Hex(body);
  Sign(credentials, {"us-east-1", "s3", true}, "20130524T000000Z", &request);
  return SignatureOf(request);
}

TEST_CASE("Sign signs as S3's documentation says") {
  CHECK(S3Signature({"GET", "", "/test.txt", {}, {{"range", "bytes=0-9"}}, ""}, "") ==
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  CHECK(S3Signature({"PUT",
                     "",
                     "/test$file.text",
                     {},
                     {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                     ""},
                    "Welcome to Amazon S3.") == "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  CHECK(S3Signature({"GET", "", "/", {{"lifecycle", ""}}, {}, ""}, "") ==
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  CHECK(S3Signature({"GET", "", "/", {{"max-keys", "2"}, {"prefix", "J"}}, {}, ""}, "") ==
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_CASE("Sign signs a session's token and each difference") {
  const auto signature = [](const S3Credentials& credentials, const S3Scope& scope, const std::string& path) {
    S3Request request{"GET", "host", path, {}, {}, Sha256Hex("")};
    Sign(credentials, scope, "20130524T000000Z", &request);
    CHECK(absl::StrContains(request.headers["authorization"], "x-amz-content-sha256"));
    CHECK(absl::StrContains(request.headers["authorization"], "x-amz-security-token") == !credentials.session_token.empty());
    return SignatureOf(request);
  };
  const std::string plain = signature({"a", "b", ""}, {}, "/x");
  CHECK(plain == signature({"a", "b", ""}, {}, "/x"));
  CHECK(plain != signature({"a", "c", ""}, {}, "/x"));
  CHECK(plain != signature({"a", "b", "t"}, {}, "/x"));
  CHECK(plain != signature({"a", "b", ""}, {}, "/y"));
  CHECK(plain != signature({"a", "b", ""}, {"eu-west-1", "s3", true}, "/x"));
}

TEST_CASE("UriEncode encodes what isn't unreserved") {
  CHECK(UriEncode("a/b c~_-.$\xc3\xa4", true) == "a/b%20c~_-.%24%C3%A4");
  CHECK(UriEncode("a/b", false) == "a%2Fb");
}

}  // namespace
}  // namespace kvist::remote
