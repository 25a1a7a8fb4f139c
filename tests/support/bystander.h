#ifndef KVIST_TESTS_SUPPORT_BYSTANDER_H_
#define KVIST_TESTS_SUPPORT_BYSTANDER_H_

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"

namespace kvist::test {

// An engine that must not notice anything.
class Bystander {
 public:
  explicit Bystander(const DaemonProcess& daemon) : engine_(FakeEngine::On(daemon.socket(), "bystander")) {
    REQUIRE(engine_.status.message == "");
    keys_ = engine_.Keys(1, 8);
    REQUIRE(engine_.StoreAll(keys_).status == KVIST_OK);
  }
  ~Bystander() {
    std::string wrong;
    CHECK(engine_.LoadAll(keys_, &wrong) == 8);
    CHECK(wrong == "");
    CHECK(engine_.scheduler().connection() == KVIST_CONNECTED);
  }

 private:
  FakeEngine engine_;
  std::vector<kvist_key> keys_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_BYSTANDER_H_
