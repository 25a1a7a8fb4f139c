#ifndef KVIST_TESTS_SUPPORT_FILES_UNDER_H_
#define KVIST_TESTS_SUPPORT_FILES_UNDER_H_

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

namespace kvist::test {

// Every file in and below the folder, by its path, with its bytes: to see whether anything was changed.
inline std::map<std::string, std::string> FilesUnder(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_FILES_UNDER_H_
