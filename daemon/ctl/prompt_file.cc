#include "daemon/ctl/prompt_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kvist::ctl {
namespace {

constexpr size_t kShown = 40;      // of a word that is none
constexpr size_t kKeyDigits = 64;  // of a SHA-256 digest

absl::StatusOr<std::string> ReadAll(std::istream& from, const std::string& name) {
  std::string text;
  for (char part[65536]; from.read(part, sizeof part) || from.gcount() > 0;)
    text.append(part, static_cast<size_t>(from.gcount()));
  if (from.bad()) return absl::UnavailableError(absl::StrCat(name, ": ", std::strerror(errno)));
  return text;
}

absl::StatusOr<std::string> Contents(const std::string& path) {
  if (path == "-") return ReadAll(std::cin, "stdin");
  if (std::error_code none; std::filesystem::is_directory(path, none))
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory"));
  std::ifstream file(path);
  if (!file.is_open()) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  return ReadAll(file, path);
}

std::vector<absl::string_view> Words(absl::string_view text) {
  return absl::StrSplit(text, absl::ByAnyChar(" \t\r\n,[]"), absl::SkipEmpty());
}

absl::Status NoSuch(const char* what, size_t number, absl::string_view word) {
  return absl::InvalidArgumentError(
      absl::StrCat("word ", number + 1, " is no ", what, ": \"", absl::CHexEscape(word.substr(0, kShown)), "\""));
}

}  // namespace

absl::StatusOr<node::v1::Prompt> ParseTokens(absl::string_view text) {
  node::v1::Prompt prompt;
  const std::vector<absl::string_view> words = Words(text);
  for (size_t i = 0; i < words.size(); ++i) {
    uint32_t token = 0;
    if (!absl::SimpleAtoi(words[i], &token)) return NoSuch("token id", i, words[i]);
    prompt.add_tokens(token);
  }
  if (words.empty()) return absl::InvalidArgumentError("there are no token ids");
  return prompt;
}

absl::StatusOr<node::v1::Prompt> ParseKeys(absl::string_view text) {
  node::v1::Prompt prompt;
  const std::vector<absl::string_view> words = Words(text);
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].size() != kKeyDigits || !std::all_of(words[i].begin(), words[i].end(), absl::ascii_isxdigit))
      return NoSuch("chunk key of 64 hex digits", i, words[i]);
    *prompt.add_keys() = absl::HexStringToBytes(words[i]);
  }
  if (words.empty()) return absl::InvalidArgumentError("there are no keys");
  return prompt;
}

absl::StatusOr<node::v1::Prompt> ReadTokens(const std::string& path) {
  const absl::StatusOr<std::string> text = Contents(path);
  if (!text.ok()) return text.status();
  return ParseTokens(*text);
}

absl::StatusOr<node::v1::Prompt> ReadKeys(const std::string& path) {
  const absl::StatusOr<std::string> text = Contents(path);
  if (!text.ok()) return text.status();
  return ParseKeys(*text);
}

}  // namespace kvist::ctl
