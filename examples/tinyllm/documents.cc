#include "examples/tinyllm/documents.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>
#include <system_error>

namespace tinyllm {
namespace {

namespace fs = std::filesystem;

// A README, a licence called GPL-2.0; not a program, nor what is hidden.
bool IsProse(const fs::path& file) {
  const std::string extension = file.extension().string();
  const bool is_known =
      extension.size() < 2 || std::isalpha(static_cast<unsigned char>(extension[1])) == 0 || extension == ".md";
  return is_known && !file.filename().string().starts_with('.');
}

std::vector<fs::path> FilesBelow(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator it(directory, fs::directory_options::skip_permission_denied, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool is_link = it->is_symlink(error);
    if (!is_link && it->is_directory(error)) {
      if (name.starts_with('.') || name == "build") it.disable_recursion_pending();
    } else if (!is_link && it->is_regular_file(error) && IsProse(it->path())) {
      files.push_back(it->path());
    }
  }
  std::ranges::sort(files);
  return files;
}

std::optional<Document> ReadDocument(const fs::path& file, const DocumentOptions& options) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(options.bytes_max, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() < options.bytes_min || text.find('\0') != std::string::npos) return std::nullopt;
  return Document{file.filename().string(), std::move(text)};
}

}  // namespace

std::vector<Document> ReadDocuments(std::span<const fs::path> directories, const DocumentOptions& options) {
  std::vector<std::vector<fs::path>> files;
  for (const fs::path& directory : directories) files.push_back(FilesBelow(directory));
  std::vector<size_t> next(files.size(), 0);
  std::vector<Document> documents;
  for (bool found = true; found && documents.size() < options.count;) {
    found = false;
    for (size_t i = 0; i < files.size() && documents.size() < options.count; ++i) {
      while (next[i] < files[i].size()) {
        if (std::optional<Document> document = ReadDocument(files[i][next[i]++], options)) {
          documents.push_back(*std::move(document));
          found = true;
          break;
        }
      }
    }
  }
  return documents;
}

void AppendTokens(std::string_view text, std::vector<Token>& tokens) {
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
}

}  // namespace tinyllm
