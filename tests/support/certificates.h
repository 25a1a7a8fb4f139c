#ifndef KVIST_TESTS_SUPPORT_CERTIFICATES_H_
#define KVIST_TESTS_SUPPORT_CERTIFICATES_H_

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "tests/support/temp_dir.h"

namespace kvist::test {

// A CA of the test's own, made by the openssl program, and what it signs: DIR/NAME.crt and DIR/NAME.key (mode 0600) for each.
class CertificateAuthority {
 public:
  CertificateAuthority() {
    Run("openssl req -x509 " + NewKey("ca") + " -days 2 -subj '/CN=a test' -out " + dir_.path() + "/ca.crt");
  }

  // A certificate with this common name and these subject alternative names ("DNS:a.example,URI:spiffe://b"), for so many days from now;
  // fewer than none: its time is over.
  void Sign(const std::string& name, const std::string& names, int days = 2) const {
    const std::string request = dir_ / (name + ".csr");
    Run("openssl req -new " + NewKey(name) + " -subj /CN=" + name +
        (names.empty() ? "" : " -addext subjectAltName=" + names) + " -out " + request);
    Run("openssl x509 -req -in " + request + " -CA " + file("ca.crt") + " -CAkey " + file("ca.key") +
        " -CAcreateserial -copy_extensions copyall -days " + std::to_string(days) + " -out " + file(name + ".crt"));
  }

  std::string file(const std::string& name) const { return dir_ / name; }
  // A command that has to succeed; what it makes is closed to other users.
  void Run(const std::string& command) const {
    INFO(command);
    REQUIRE(std::system(("umask 077; " + command + " 2>>" + dir_ / "log").c_str()) == 0);
  }

 private:
  std::string NewKey(const std::string& name) const {
    return "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout " + dir_ / (name + ".key");
  }

  TempDir dir_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_CERTIFICATES_H_
