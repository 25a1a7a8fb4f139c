#ifndef KVIST_TESTS_SUPPORT_CAMPAIGN_H_
#define KVIST_TESTS_SUPPORT_CAMPAIGN_H_

#include <cstdlib>

namespace kvist::test {

// How long or how often: what the environment says, else the short campaign of every run.
inline int Campaign(const char* variable, int by_default) {
  const char* value = std::getenv(variable);
  return value != nullptr ? std::atoi(value) : by_default;
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_CAMPAIGN_H_
