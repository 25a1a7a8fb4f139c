#include "examples/tinyllm/record.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tinyllm {
namespace {

constexpr const char* kMagic = "tinyllm-record";
constexpr int kVersion = 1;
// More than a record can sensibly hold: a broken file is refused before memory is taken for it.
constexpr size_t kEntriesMax = 1 << 16, kFloatsMax = 1 << 28;

}  // namespace

bool IsPhaseName(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; });
}

absl::Status WriteRecord(const Record& record, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << kMagic << ' ' << kVersion << ' ' << record.revision << ' ' << record.entries.size() << '\n';
  for (const Record::Entry& entry : record.entries) {
    file << entry.name << '\n' << entry.phases.size() << ' ' << entry.logits.size() << '\n';
    for (const Record::Phase& phase : entry.phases) file << phase.name << ' ' << phase.first_token_ms << '\n';
    file.write(reinterpret_cast<const char*>(entry.logits.data()),
               static_cast<std::streamsize>(entry.logits.size() * sizeof(float)));
  }
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write the logits to ", path));
  return absl::OkStatus();
}

absl::StatusOr<Record> ReadRecord(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::UnavailableError(absl::StrCat("cannot read the logits of ", path));
  const absl::Status broken =
      absl::InvalidArgumentError(absl::StrCat(path, " isn't a whole record that --logits-out wrote"));

  Record record;
  std::string magic;
  int version = 0;
  size_t entries = 0;
  file >> magic >> version >> record.revision >> entries;
  file.ignore();
  if (!file || magic != kMagic || version != kVersion || entries > kEntriesMax) return broken;
  for (size_t i = 0; i < entries; ++i) {
    Record::Entry entry;
    size_t phases = 0, floats = 0;
    std::getline(file, entry.name);
    file >> phases >> floats;
    if (!file || phases > Record::kPhasesMax || floats > kFloatsMax) return broken;
    for (size_t j = 0; j < phases; ++j) {
      Record::Phase phase{};
      file >> phase.name >> phase.first_token_ms;
      entry.phases.push_back(phase);
    }
    file.ignore();
    entry.logits.resize(floats);
    file.read(reinterpret_cast<char*>(entry.logits.data()), static_cast<std::streamsize>(floats * sizeof(float)));
    if (!file) return broken;
    record.entries.push_back(std::move(entry));
  }
  return record;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

uint64_t DigestOf(const std::vector<float>& logits) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const float x : logits) digest = (digest ^ std::bit_cast<uint32_t>(x)) * 0x100000001b3;
  return digest;
}

}  // namespace tinyllm
