#ifndef KVIST_TESTS_SIM_ONLY_H_
#define KVIST_TESTS_SIM_ONLY_H_

#include <variant>

#include "daemon/core/effects.h"

namespace kvist::sim {

// The only effect, if it is a T.
template <class T>
const T* Only(const core::Effects& effects) {
  return effects.size() == 1 ? std::get_if<T>(&effects[0]) : nullptr;
}

}  // namespace kvist::sim

#endif  // KVIST_TESTS_SIM_ONLY_H_
