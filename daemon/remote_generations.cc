#include "daemon/remote_generations.h"

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/kept_file.h"
#include "storage/base/status.h"
#include "storage/remote/object_name.h"

namespace kvist::daemon {
namespace {

constexpr absl::string_view kFirstLine = "kvist remote generations 1";
constexpr absl::string_view kAll = "all";
constexpr size_t kFileMax = 16 << 20;

std::string HexOf(const SpaceDigest& digest) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()});
}

}  // namespace

absl::StatusOr<RemoteGenerations> RemoteGenerations::Open(const std::string& path) {
  RemoteGenerations generations;
  const absl::StatusOr<std::string> text = ReadKeptFile(path, kFileMax);
  if (absl::IsNotFound(text.status())) return generations;
  const auto broken = [&] {
    return absl::DataLossError(
        absl::StrCat(path,
                     " isn't what kvistd wrote there: without it what was cleared could be found again in the "
                     "remote store. Restore it, or remove it and clear what must not come back once more"));
  };
  if (absl::IsResourceExhausted(text.status())) return broken();
  KVIST_RETURN_IF_ERROR(text.status());
  std::vector<absl::string_view> lines = absl::StrSplit(*text, '\n');
  // The last line says that none is missing.
  if (lines.size() < 3 || lines.front() != kFirstLine || !lines.back().empty() || lines[lines.size() - 2] != "end")
    return broken();
  for (const absl::string_view line : std::span(lines).subspan(1, lines.size() - 3)) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    uint64_t number = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[1], &number)) return broken();
    if (words[0] == kAll) {
      generations.Raise(std::nullopt, number);
      continue;
    }
    SpaceDigest space;
    // Whatever it makes of what is no hex comes out other than it went in
    const std::string bytes = absl::HexStringToBytes(words[0]);
    if (words[0].size() != 2 * space.bytes.size()) return broken();
    std::memcpy(space.bytes.data(), bytes.data(), space.bytes.size());
    if (HexOf(space) != words[0]) return broken();
    generations.Raise(space, number);
  }
  return generations;
}

RemoteGenerations::Generation RemoteGenerations::Of(const SpaceDigest& space) const { return {all_, Number(space)}; }

SpaceDigest RemoteGenerations::NameIn(const SpaceDigest& space, Generation generation) {
  if (generation == Generation{}) return space;
  const std::array<uint64_t, 2> numbers = {generation.all, generation.space};
  static const remote::Secret key = remote::DeriveSecret({}, "kvist.generation.1");  // no secret: it only has to differ
  return SpaceDigest{remote::Hmac(key, std::as_bytes(std::span(space.bytes)), std::as_bytes(std::span(numbers)))};
}

uint64_t RemoteGenerations::Number(const std::optional<SpaceDigest>& space) const {
  if (!space.has_value()) return all_;
  const auto known = spaces_.find(*space);
  return known == spaces_.end() ? 0 : known->second;
}

bool RemoteGenerations::Raise(const std::optional<SpaceDigest>& space, uint64_t number) {
  if (number <= Number(space)) return false;
  (space.has_value() ? spaces_[*space] : all_) = number;
  return true;
}

std::vector<std::optional<SpaceDigest>> RemoteGenerations::Cleared() const {
  std::vector<std::optional<SpaceDigest>> cleared;
  if (all_ > 0) cleared.emplace_back();
  for (const auto& [space, number] : spaces_) cleared.emplace_back(space);
  return cleared;
}

std::string RemoteGenerations::Text() const {
  std::string text = absl::StrCat(kFirstLine, "\n");
  if (all_ > 0) absl::StrAppend(&text, kAll, " ", all_, "\n");
  for (const auto& [space, number] : spaces_) absl::StrAppend(&text, HexOf(space), " ", number, "\n");
  return text + "end\n";
}

}  // namespace kvist::daemon
