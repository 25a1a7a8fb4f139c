#include "storage/ssd/catalog_stamp.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <span>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"
#include "storage/base/xxh3.h"
#include "storage/ssd/directory.h"

namespace kvist::ssd {
namespace {

uint64_t ChecksumOf(const CatalogStamp& stamp) { return XXH3_64bits(&stamp, offsetof(CatalogStamp, checksum)); }

}  // namespace

CatalogAge AgeOf(const MetaRow& meta, const std::optional<CatalogStamp>& stamp) {
  // Nothing was ever committed: there is nothing in it to be old. Its stamp may be missing after a crash in its first moments.
  if (meta.commits == 0 && meta.rebuild_pending) return {CatalogAge::kUnclean, {}};
  if (!stamp.has_value()) return {CatalogAge::kWrong, "its stamp is missing, so nothing says that it isn't an older copy"};
  if (stamp->store != meta.store) return {CatalogAge::kWrong, "it is of another store than its stamp"};
  if (stamp->incarnation != meta.incarnation)
    return {CatalogAge::kWrong, "it is another catalog than the one last used here"};
  // An open counts the generation in the catalog first, then in the stamp: after a crash between the two the catalog is one ahead.
  if (meta.generation != stamp->generation && meta.generation != stamp->generation + 1) {
    return {CatalogAge::kWrong, absl::StrCat("it is a copy from its open number ", meta.generation,
                                             ", and the last was number ", stamp->generation)};
  }
  if (meta.commits < stamp->commits || (stamp->clean == 1 && meta.commits != stamp->commits)) {
    return {CatalogAge::kWrong, absl::StrCat("it ends at commit ", meta.commits, ", and ", stamp->commits, " were made")};
  }
  return {stamp->clean == 1 ? CatalogAge::kClean : CatalogAge::kUnclean, {}};
}

absl::StatusOr<std::optional<CatalogStamp>> ReadStamp(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) {
    if (errno == ENOENT || errno == ELOOP) return std::nullopt;
    return ErrnoStatus(absl::StrCat("opening ", path), errno);
  }
  CatalogStamp stamp{};
  const ssize_t got = ::read(file.get(), &stamp, sizeof stamp);
  if (got < 0 && errno != EISDIR && errno != EIO) return ErrnoStatus(absl::StrCat("reading ", path), errno);
  if (got != sizeof stamp || stamp.magic != kStampMagic || stamp.version != kStampVersion || stamp.clean > 1 ||
      stamp.checksum != ChecksumOf(stamp))
    return std::nullopt;
  return stamp;
}

CatalogStamp StampOf(const MetaRow& meta, const std::optional<CatalogFiles>& files) {
  return {.magic = kStampMagic,
          .version = kStampVersion,
          .clean = files.has_value() ? 1u : 0u,
          .store = meta.store,
          .incarnation = meta.incarnation,
          .generation = meta.generation,
          .commits = meta.commits,
          .files = files.value_or(CatalogFiles{}),
          .checksum = 0};
}

absl::Status WriteStamp(const std::string& path, CatalogStamp stamp) {
  stamp.checksum = ChecksumOf(stamp);
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0 && S_ISDIR(there.st_mode)) KVIST_RETURN_IF_ERROR(Quarantine(path, 1).status());
  return ReplaceFile(path, std::as_bytes(std::span(&stamp, 1)));
}

absl::Status RemoveStamp(const std::string& path) {
  if (std::remove(path.c_str()) == 0) return SyncDirectoryOf(path);
  // A folder that holds something is no stamp either; WriteStamp moves it aside.
  return errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST ? absl::OkStatus()
                                                                  : ErrnoStatus(absl::StrCat("removing ", path), errno);
}

}  // namespace kvist::ssd
