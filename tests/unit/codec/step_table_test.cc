#include "storage/codec/step_table.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

namespace kvist::codec {
namespace {

TEST_CASE("StepTable descends by eighths of an octave") {
  const StepTable table(3.5F);
  CHECK(table.top() == 3.5F);
  for (int code = 0; code < 256; ++code) {
    const double expected = 3.5 * std::pow(2.0, -code / 8.0);
    CHECK(table.step(static_cast<uint8_t>(code)) == Approx(expected).epsilon(1e-6));
    CHECK(table.inverse(static_cast<uint8_t>(code)) == Approx(1 / expected).epsilon(1e-6));
  }
}

TEST_CASE("StepTable finds the next step above and below") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    const StepTable table(
        std::ldexp(1.0F + static_cast<float>(random() % 1000) / 1000, static_cast<int>(random() % 200) - 100));
    const float wanted =
        table.top() * std::ldexp(static_cast<float>(1 + random() % 1000) / 1000, -static_cast<int>(random() % 36));
    const uint8_t above = table.AtLeast(wanted), below = table.AtMost(wanted);
    CHECK(table.step(above) >= wanted);
    if (above < 255) CHECK(table.step(static_cast<uint8_t>(above + 1)) < wanted);
    if (table.step(255) <= wanted) CHECK(table.step(below) <= wanted);
    if (below > 0 && table.step(255) <= wanted) CHECK(table.step(static_cast<uint8_t>(below - 1)) > wanted);
  }
}

TEST_CASE("StepTable has no infinite inverse when its steps are the smallest floats") {
  for (const float top : {0.0F, 1e-45F, std::numeric_limits<float>::min(), std::numeric_limits<float>::max()}) {
    const StepTable table(top);
    bool finite = true;
    for (int code = 0; code < 256; ++code) finite = finite && std::isfinite(table.inverse(static_cast<uint8_t>(code)));
    CHECK(finite);
    CHECK(table.AtLeast(0) == 255);
  }
  CHECK(StepTable(0).inverse(0) == 0);
}

TEST_CASE("StepTable refuses tops that are none") {
  CHECK(StepTable::IsTop(0));
  CHECK(StepTable::IsTop(1e-40F));
  CHECK(!StepTable::IsTop(-0.0F));
  CHECK(!StepTable::IsTop(-1));
  CHECK(!StepTable::IsTop(HUGE_VALF));
  CHECK(!StepTable::IsTop(std::nanf("")));
}

}  // namespace
}  // namespace kvist::codec
