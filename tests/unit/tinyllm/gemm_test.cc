#include "examples/tinyllm/gemm.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <random>
#include <vector>

namespace tinyllm {
namespace {

struct Product {
  int rows, depth, columns;
  std::vector<float> a;
  PackedMatrix b;

  Product(int m, int k, int n) : rows(m), depth(k), columns(n), a(static_cast<size_t>(m * k)), b(k, n) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& x : a) x = normal(random);
    for (int i = 0; i < k; ++i) {
      for (int j = 0; j < n; ++j) b.at(i, j) = normal(random);
    }
  }
  ptrdiff_t stride() const { return columns + 64; }

  // Rows [first, first + count) of the product, into a result that held `before`.
  std::vector<float> Rows(ThreadPool& pool, int first, int count, Result result, float before) const {
    std::vector<float> c(static_cast<size_t>(count * stride()), before);
    Multiply(pool, count, {a.data() + first * depth, depth}, b, c.data(), stride(), result);
    return c;
  }
};

TEST_CASE("Multiply is a matrix product") {
  ThreadPool pool(2);
  const Product p(37, 50, 70);
  const std::vector<float> c = p.Rows(pool, 0, p.rows, Result::kAdd, 3.0f);
  PackedMatrix b = p.b;
  for (int i = 0; i < p.rows; ++i) {
    for (int j = 0; j < p.columns; ++j) {
      double expected = 3;
      for (int k = 0; k < p.depth; ++k) expected += double{p.a[static_cast<size_t>(i * p.depth + k)]} * b.at(k, j);
      CHECK(std::abs(c[static_cast<size_t>(i * p.stride() + j)] - expected) < 1e-4);
    }
  }
}

TEST_CASE("Multiply gives each row the same bits in whatever rows it comes") {
  ThreadPool one(1), three(3);
  const Product p(64, 96, 80);
  const std::vector<float> whole = p.Rows(one, 0, p.rows, Result::kOverwrite, 0);
  for (int count = 1; count <= 26; ++count) {
    for (int first = 0; first + count <= p.rows; first += 7) {
      const std::vector<float> part = p.Rows(three, first, count, Result::kOverwrite, 5);
      bool equal = true;
      for (int i = 0; i < count; ++i) {
        for (int j = 0; j < p.columns; ++j) {
          equal = equal &&
                  part[static_cast<size_t>(i * p.stride() + j)] == whole[static_cast<size_t>((first + i) * p.stride() + j)];
        }
      }
      INFO(count << " rows from " << first);
      CHECK(equal);
    }
  }
}

}  // namespace
}  // namespace tinyllm
