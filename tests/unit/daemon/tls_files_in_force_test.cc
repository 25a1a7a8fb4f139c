#include "daemon/endpoint/tls_files_in_force.h"

#include <poll.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tests/support/certificates.h"

namespace kvist::endpoint {
namespace {

bool Soon(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

// A node's files, which are looked at without pause, and what is said of them.
struct Renewed {
  test::CertificateAuthority ca;
  absl::Mutex mutex;
  std::vector<std::pair<bool, std::string>> said ABSL_GUARDED_BY(mutex);
  std::unique_ptr<TlsFilesInForce> in_force;

  explicit Renewed(int days = 2) {
    ca.Sign("node", "DNS:localhost", days);
    ca.Sign("next", "DNS:localhost");
    ca.Sign("old", "DNS:localhost", -1);
    auto created = TlsFilesInForce::Create({.files = {ca.file("node.crt"), ca.file("node.key"), ca.file("ca.crt")},
                                            .say =
                                                [this](bool warning, const std::string& text) {
                                                  const absl::MutexLock lock(&mutex);
                                                  said.emplace_back(warning, text);
                                                },
                                            .look_every = absl::Milliseconds(1)});
    INFO(created.status().ToString());
    REQUIRE(created.ok());
    in_force = *std::move(created);
  }
  void Put(const std::string& from, const std::string& to) const {
    const std::string beside = ca.file(to + ".new");
    std::filesystem::copy_file(ca.file(from), beside, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::rename(beside, ca.file(to));
  }
  TlsTexts Texts() const { return *ReadTlsFiles(in_force->paths()); }
  TlsTexts Of(const std::string& name) const {
    return *ReadTlsFiles({ca.file(name + ".crt"), ca.file(name + ".key"), ca.file("ca.crt")});
  }
  std::vector<std::pair<bool, std::string>> Said() {
    const absl::MutexLock lock(&mutex);
    return said;
  }
  bool Warned(const std::string& what) {
    return Soon(
        [&] { return !Said().empty() && Said().back().first && Said().back().second.find(what) != std::string::npos; });
  }
  bool Well() {
    return Soon([&] { return !Said().empty() && Said().back().second.find("well again") != std::string::npos; });
  }
};

TEST_CASE("TlsFilesInForce keeps what was there before while files don't fit, says so once, and takes them when they do") {
  Renewed renewed;
  const TlsTexts before = renewed.Of("node"), next = renewed.Of("next");
  CHECK(renewed.Texts() == before);
  CHECK(renewed.in_force->trouble().ok());
  renewed.Put("next.crt", "node.crt");
  CHECK(renewed.Warned("tls.key_file: " + renewed.ca.file("node.key") + " isn't the key of the certificate in "));
  CHECK_THAT(std::string(renewed.in_force->trouble().message()), Catch::StartsWith("tls.key_file: "));
  CHECK(renewed.Texts() == before);
  renewed.Put("next.key", "node.key");
  CHECK(renewed.Well());
  CHECK(renewed.Texts() == next);
  const auto said = renewed.Said();
  REQUIRE(said.size() == 3);
  CHECK_THAT(said[1].second, Catch::Contains("renewed, and in force"));
  CHECK_THAT(said[2].second, Catch::Contains("well again"));
}

TEST_CASE("TlsFilesInForce takes no file that is half written, gone, or open to others") {
  Renewed renewed;
  const TlsTexts before = renewed.Of("node");
  renewed.Put("ca.crt", "kept.crt");
  std::filesystem::remove(renewed.ca.file("ca.crt"));
  CHECK(renewed.Warned("tls.ca_file: opening " + renewed.ca.file("ca.crt")));
  renewed.Put("kept.crt", "ca.crt");
  CHECK(renewed.Well());
  {
    std::ofstream half(renewed.ca.file("half.crt"));
    half << before.ca << before.ca.substr(0, before.ca.size() / 2);
  }
  renewed.Put("half.crt", "ca.crt");
  CHECK(renewed.Warned("is broken after 1 certificates"));
  renewed.Put("kept.crt", "ca.crt");
  CHECK(renewed.Well());
  REQUIRE(::chmod(renewed.ca.file("node.key").c_str(), 0644) == 0);
  CHECK(renewed.Warned("tls.key_file: other users may read"));
  CHECK(renewed.Texts() == before);
}

TEST_CASE("TlsFilesInForce replaces no certificate by one whose time is over, and says when its own is") {
  {
    Renewed renewed;
    const TlsTexts before = renewed.Of("node");
    renewed.Put("old.key", "node.key");
    renewed.Put("old.crt", "node.crt");
    CHECK(
        renewed.Warned("tls.certificate_file: the time of the certificate in " + renewed.ca.file("node.crt") + " is over"));
    CHECK(renewed.Texts() == before);
  }
  Renewed late(-1);
  CHECK(late.Texts() == late.Of("node"));
  CHECK(late.Warned("is over"));
  late.Put("next.key", "node.key");
  late.Put("next.crt", "node.crt");
  CHECK(late.Well());
  CHECK(late.Texts() == late.Of("next"));
}

TEST_CASE("TlsFilesInForce takes a renewal beside a CA that has run out, as long as another hasn't") {
  Renewed renewed;
  const TlsTexts next = renewed.Of("next");
  {
    std::ofstream both(renewed.ca.file("both.crt"));
    both << renewed.Of("old").certificate << next.ca;
  }
  renewed.Put("both.crt", "ca.crt");
  renewed.Put("next.key", "node.key");
  renewed.Put("next.crt", "node.crt");
  CHECK(Soon([&] {
    const auto texts = ReadTlsFiles(renewed.in_force->paths());  // half of them, for a moment
    return texts.ok() && texts->certificate == next.certificate;
  }));
}

TEST_CASE("TlsFilesInForce is made of files that fit, and of no others") {
  const test::CertificateAuthority ca;
  ca.Sign("node", "DNS:localhost");
  const auto refused = TlsFilesInForce::Create(
      {.files = {ca.file("node.crt"), ca.file("ca.key"), ca.file("ca.crt")}, .say = [](bool, const std::string&) {}});
  CHECK_THAT(std::string(refused.status().message()), Catch::Contains("isn't the key of the certificate"));
}

}  // namespace
}  // namespace kvist::endpoint
