#ifndef KVIST_TESTS_SUPPORT_CAMPAIGN_H_
#define KVIST_TESTS_SUPPORT_CAMPAIGN_H_

#include <cstdlib>
#include <string_view>

namespace kvist::test {

// Whether the long campaigns are asked for (tests/run.sh --full).
inline bool FullCampaign() {
  const char* value = std::getenv("KVIST_CAMPAIGN");
  return value != nullptr && std::string_view(value) == "full";
}

// How long or how often: what the environment says by this name, else `quick` in every run and `full` in a long campaign, in which a
// program may still take no more than ctest's five minutes.
inline int Campaign(const char* variable, int quick, int full) {
  const char* value = std::getenv(variable);
  if (value != nullptr) return std::atoi(value);
  return FullCampaign() ? full : quick;
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_CAMPAIGN_H_
