// A kvistd to which the kernel refuses io_uring, as in many containers.
#include <stdlib.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/recovery.h"
#include "tests/support/stderr_to.h"
#include "tests/support/temp_dir.h"

using kvist::test::BinDir;
using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::HasRecovered;
using kvist::test::SsdOf;
using kvist::test::StderrTo;
using kvist::test::TempDir;

TEST_CASE("Where io_uring isn't allowed the SSD tier works by threads, and the log says so at the start") {
  REQUIRE(::setenv("KVISTD", (BinDir() + "/kvistd_without_io_uring").c_str(), 1) == 0);
  const TempDir dir;
  const std::string log = dir.path() + "/log";
  {
    const StderrTo file(log);
    DaemonProcess daemon(dir.path(),
                         {"ssd.enabled=true", "ssd.path=" + (dir / "ssd"), "ssd.capacity=256MiB", "pool.bytes=6MiB"});
    REQUIRE(HasRecovered(daemon));
    CHECK(SsdOf(daemon)["directories"][0]["how"].get<std::string>().find(" threads, ") != std::string::npos);
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    std::string wrong;
    for (int prompt = 0; prompt < 20; ++prompt) {  // two pools
      REQUIRE(engine.StoreAll(engine.Keys(prompt * 1000, 16)).status == KVIST_OK);
      REQUIRE(engine.scheduler().Flush(30'000'000).ok());
    }
    for (int prompt = 0; prompt < 20; ++prompt) CHECK(engine.LoadAll(engine.Keys(prompt * 1000, 16), &wrong) == 16);
    CHECK(wrong.empty());
    CHECK(daemon.Terminate() == 0);
  }
  std::ifstream lines(log);
  const std::string said{std::istreambuf_iterator<char>(lines), {}};
  INFO(said);
  CHECK(said.find(dir / "ssd" + ": the SSD tier works with ") != std::string::npos);
  CHECK(said.find(" threads instead of io_uring: ") != std::string::npos);
}
