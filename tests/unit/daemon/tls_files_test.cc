#include "daemon/endpoint/tls_files.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "daemon/endpoint/address.h"
#include "tests/support/certificates.h"

namespace kvist::endpoint {
namespace {

TEST_CASE("CheckTlsFiles takes what a connection can be made with") {
  const test::CertificateAuthority ca;
  ca.Sign("node", "DNS:localhost");
  ca.Sign("other", "DNS:localhost");
  ca.Sign("old", "DNS:localhost", -1);
  const TlsFiles good{ca.file("node.crt"), ca.file("node.key"), ca.file("ca.crt")};
  CHECK(CheckTlsFiles(good).message() == "");
  CHECK(CheckTlsFiles({ca.file("old.crt"), ca.file("old.key"), ca.file("ca.crt")}).message() == "");

  const auto why = [&](auto change) {
    TlsFiles files = good;
    change(files);
    const absl::Status status = CheckTlsFiles(files);
    CHECK_FALSE(status.ok());
    return std::string(status.message());
  };
  CHECK(why([](TlsFiles& f) { f.key = f.ca = ""; }) == "TLS lacks tls.key_file, tls.ca_file");
  CHECK_THAT(why([&](TlsFiles& f) { f.certificate = ca.file("none"); }), Catch::StartsWith("tls.certificate_file: opening"));
  CHECK_THAT(why([&](TlsFiles& f) { f.certificate = ca.file("node.key"); }),
             Catch::StartsWith("tls.certificate_file: ") && Catch::Contains("no certificate in PEM"));
  CHECK_THAT(why([&](TlsFiles& f) { f.ca = ca.file("node.key"); }), Catch::StartsWith("tls.ca_file: "));
  CHECK_THAT(why([&](TlsFiles& f) { f.key = ca.file("other.key"); }),
             Catch::StartsWith("tls.key_file: ") && Catch::Contains("isn't the key of the certificate"));
  CHECK_THAT(why([&](TlsFiles& f) { f.key = ca.file("node.crt"); }), Catch::Contains("no private key in PEM"));
  // Nobody is asked for its password.
  ca.Run("openssl pkcs8 -topk8 -v2 aes256 -passout pass:secret -in " + good.key + " -out " + ca.file("locked.key"));
  CHECK_THAT(why([&](TlsFiles& f) { f.key = ca.file("locked.key"); }), Catch::Contains("without a password"));
  REQUIRE(::chmod(good.key.c_str(), 0644) == 0);
  CHECK(why([](TlsFiles&) {}) == "tls.key_file: other users may read " + good.key + ": chmod o-rwx " + good.key);
}

TEST_CASE("ParseAddress reads a socket's path, or a host and port by TLS") {
  CHECK(ParseAddress("unix:/run/a=b.sock") == Address{.socket = "/run/a=b.sock"});
  CHECK(ParseAddress("tls:node-b.example:9416") == Address{.host = "node-b.example", .port = 9416});
  CHECK(ParseAddress("tls:10.0.0.7:1") == Address{.host = "10.0.0.7", .port = 1});
  CHECK(ParseAddress("tls:[fd00::7]:65535") == Address{.host = "fd00::7", .port = 65535});
  for (const char* text : {"unix:/a", "tls:a:1", "tls:[::1]:2"}) CHECK(ParseAddress(text)->text() == text);
  for (const std::string wrong :
       {"",          "unix:",     "unix:a",      "/run/a.sock", "tls:",       "tls:a",      "tls:a:",
        "tls::1",    "tls:a:0",   "tls:a:65536", "tls:a:01",    "tls:::1:5",  "tls:[::1:5", "tls:[a]:5",
        "tls:a b:5", "tls:a/b:5", "tls:-a:5",    "tls:a@b:5",   "http://a:5", "a:5"}) {
    INFO(wrong);
    CHECK_FALSE(ParseAddress(wrong).has_value());
  }
  CHECK_FALSE(ParseAddress("unix:/" + std::string(107, 'x')).has_value());
}

}  // namespace
}  // namespace kvist::endpoint
