// Configuration text -> Options.
//
// Input: the file; after each zero byte a --set argument.
// Holds: nothing crashes or throws; what is refused says why; what is accepted prints as a file that reads back equal.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config.h"
#include "daemon/config_text.h"
#include "storage/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> parts{""};
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == 0) {
      parts.emplace_back();
    } else {
      parts.back().push_back(static_cast<char>(data[i]));
    }
  }
  const std::string file = parts.front();
  parts.erase(parts.begin());
  const auto options = kvist::daemon::ParseConfig(file, "fuzz.toml", parts);
  if (!options.ok()) {
    KVIST_CHECK(options.status().code() == absl::StatusCode::kInvalidArgument);
    KVIST_CHECK(!options.status().message().empty());
    return 0;
  }
  KVIST_CHECK(options->Validate().ok());
  const auto again = kvist::daemon::ParseConfig(kvist::daemon::PrintConfig(*options), "printed.toml");
  KVIST_CHECK(again.ok());
  KVIST_CHECK(*again == *options);
  return 0;
}
