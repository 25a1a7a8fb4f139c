#ifndef KVIST_EXAMPLES_TINYLLM_DOCUMENTS_H_
#define KVIST_EXAMPLES_TINYLLM_DOCUMENTS_H_

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "examples/tinyllm/config.h"

namespace tinyllm {

struct Document {
  std::string name;  // of its file
  std::string text;
};

struct DocumentOptions {
  size_t count = 4;         // at most
  size_t bytes_min = 1024;  // shorter files aren't worth a question
  size_t bytes_max = 6000;  // longer ones are cut
};

// Reads the texts below the directories: regular files, no links, called *.md or without an alphabetic extension (GPL,
// GPL-2.0), without a zero byte; nothing hidden, nothing below a directory called "build". In order of their paths, one of
// each directory in turn. What can't be read is left out.
std::vector<Document> ReadDocuments(std::span<const std::filesystem::path> directories, const DocumentOptions& options);

// The tokens of a text: its bytes.
void AppendTokens(std::string_view text, std::vector<Token>& tokens);

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_DOCUMENTS_H_
