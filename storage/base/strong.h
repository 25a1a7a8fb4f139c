#ifndef KVIST_STORAGE_BASE_STRONG_H_
#define KVIST_STORAGE_BASE_STRONG_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <utility>

namespace kvist {

// An integer that only mixes with its own kind. `Tag` names the kind; there is no arithmetic: identifiers have none.
//
//   struct SessionTag; using SessionId = Id<SessionTag, uint64_t>;
template <class Tag, class Rep>
struct Id {
  using rep = Rep;
  Rep value{};

  constexpr auto operator<=>(const Id&) const = default;
  template <class H>
  friend H AbslHashValue(H h, const Id& id) {
    return H::combine(std::move(h), id.value);
  }
};

// A quantity with a unit: adds to and compares with its own kind, scales by plain integers, and divides into a plain integer.
template <class Tag, class Rep = uint64_t>
struct Quantity {
  using rep = Rep;
  Rep value{};

  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity o) {
    value += o.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity o) {
    value -= o.value;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return {static_cast<Rep>(a.value + b.value)}; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return {static_cast<Rep>(a.value - b.value)}; }
  friend constexpr Quantity operator*(Quantity a, uint64_t n) { return {static_cast<Rep>(a.value * n)}; }
  friend constexpr Quantity operator*(uint64_t n, Quantity a) { return a * n; }
  friend constexpr uint64_t operator/(Quantity a, Quantity b) { return a.value / b.value; }
  friend constexpr Quantity operator/(Quantity a, uint64_t n) { return {static_cast<Rep>(a.value / n)}; }
};

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_STRONG_H_
