#include "daemon/core/learned_cost.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

namespace kvist::core {
namespace {

TEST_CASE("LearnedCost finds what each of two amounts costs, through noise") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.8, 1.25);
  LearnedCost cost;
  for (uint32_t i = 0; i < 200; ++i) {
    CHECK(cost.known() == (i >= LearnedCost::kEnough));
    const double x = 1 + random() % 100, y = x * (random() % 500);
    cost.Learn(x, y, (3e-3 * x + 2e-5 * y) * noise(random));
  }
  CHECK(cost.Of(100, 0) == Approx(0.3).epsilon(0.1));
  CHECK(cost.Of(0, 10000) == Approx(0.2).epsilon(0.1));
}

TEST_CASE("LearnedCost takes all for x while the amounts grow together") {
  LearnedCost cost;
  for (int i = 1; i <= 10; ++i) cost.Learn(i, 5.0 * i, 2.0 * i);
  CHECK(cost.Of(1, 0) == Approx(2));
  CHECK(cost.Of(0, 1) == 0);
  LearnedCost of_y;
  for (int i = 1; i <= 10; ++i) of_y.Learn(0, i, 2.0 * i);
  CHECK(of_y.Of(0, 1) == Approx(2));
}

TEST_CASE("LearnedCost is never below zero") {
  std::mt19937 random(8);
  for (int round = 0; round < 1000; ++round) {
    LearnedCost cost;
    for (int i = 0; i < 6; ++i) cost.Learn(random() % 10, random() % 10, 1e-6 * (1 + random() % 1000000));
    CHECK(cost.Of(1, 0) >= 0);
    CHECK(cost.Of(0, 1) >= 0);
    CHECK(cost.Of(1, 1) > 0);
  }
}

TEST_CASE("LearnedCost follows what changes, and ignores what can't be") {
  LearnedCost cost;
  for (int i = 1; i <= 100; ++i) cost.Learn(i % 7 + 1, 1, i % 7 + 1);
  for (int i = 1; i <= 300; ++i) cost.Learn(i % 7 + 1, 1, 10.0 * (i % 7 + 1));
  CHECK(cost.Of(1, 0) == Approx(10).epsilon(0.1));
  const double before = cost.Of(5, 1);
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    cost.Learn(1, 1, bad);
    cost.Learn(bad - 1, 1, 1);
  }
  cost.Learn(0, 0, 1);
  CHECK(cost.Of(5, 1) == before);
}

}  // namespace
}  // namespace kvist::core
