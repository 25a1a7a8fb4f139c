#include "storage/ssd/rocks_manifest.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/base/check.h"
#include "storage/base/unique_fd.h"
#include "storage/base/xxh3.h"

namespace kvist::ssd {
namespace {

// Hands all bytes of the file to `take`, in order; false when it can't be read to its end.
template <class Take>
bool ReadAll(const std::string& path, Take take) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return false;
  std::array<char, 1 << 16> bytes;
  for (;;) {
    const ssize_t got = ::read(file.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    take(absl::string_view(bytes.data(), static_cast<size_t>(got)));
  }
}

}  // namespace

absl::StatusOr<CatalogFiles> ReadManifest(const std::string& folder) {
  std::string current;
  if (!ReadAll(folder + "/CURRENT", [&](absl::string_view bytes) { current.append(bytes.data(), bytes.size()); }))
    return absl::DataLossError("its file CURRENT can't be read");
  CatalogFiles files{};
  absl::string_view number = current;
  if (!absl::ConsumePrefix(&number, "MANIFEST-") || !absl::ConsumeSuffix(&number, "\n") ||
      !absl::SimpleAtoi(number, &files.manifest))
    return absl::DataLossError("its file CURRENT names no list of files");
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  KVIST_CHECK(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK);
  const bool read = ReadAll(absl::StrCat(folder, "/MANIFEST-", number), [&](absl::string_view bytes) {
    files.bytes += bytes.size();
    XXH3_64bits_update(state.get(), bytes.data(), bytes.size());
  });
  if (!read) return absl::DataLossError(absl::StrCat("its list of files, MANIFEST-", number, ", can't be read"));
  files.checksum = XXH3_64bits_digest(state.get());
  return files;
}

}  // namespace kvist::ssd
