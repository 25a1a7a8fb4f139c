#include <catch2/catch.hpp>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "examples/tinyllm/demo.h"
#include "examples/tinyllm/documents.h"
#include "examples/tinyllm/record.h"
#include "tests/support/fake_kvist.h"
#include "tests/support/stderr_to.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/tinyllm/small_model.h"

namespace tinyllm {
namespace {

namespace fs = std::filesystem;

// A folder of files that goes with the test.
class Directory : public kvist::test::TempDir {
 public:
  void Write(const char* name, const std::string& text) const {
    const fs::path file = *this / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
  }
};

TEST_CASE("ReadDocuments reads long enough text files, one of each directory in turn") {
  const Directory directory;
  const std::string text(2000, 'x');
  directory.Write("a/1", text);
  directory.Write("a/GPL-2.0", text + text);
  directory.Write("a/short", "x");
  directory.Write("a/binary", text + std::string(1, '\0'));
  directory.Write("a/.git/hidden", text);
  directory.Write("a/.hidden", text);
  directory.Write("a/build/1", text);
  directory.Write("a/program.cc", text);
  directory.Write("b/3.md", text);
  fs::create_symlink("1", directory / "a/link");
  const std::vector<fs::path> directories = {directory / "a", directory / "b", directory / "missing"};
  const std::vector<Document> documents = ReadDocuments(directories, {.count = 10, .bytes_max = 3000});
  REQUIRE(documents.size() == 3);
  CHECK(documents[0].name == "1");
  CHECK(documents[1].name == "3.md");
  CHECK(documents[2].name == "GPL-2.0");
  CHECK(documents[2].text.size() == 3000);
  CHECK(ReadDocuments(directories, {.count = 1}).size() == 1);
}

TEST_CASE("A record is read as it was written, bit for bit, and a broken one is refused") {
  const Directory directory;
  const std::string path = directory / "record";
  const Record record{
      "seed1",
      {{"a document, question 1", {{"cold", 12.5}, {"warm", 1.25}}, {1.0f, -0.0f, std::nanf("1")}}, {"chat", {}, {}}}};
  REQUIRE(WriteRecord(record, path).ok());
  const absl::StatusOr<Record> read = ReadRecord(path);
  REQUIRE(read.ok());
  CHECK(read->revision == "seed1");
  REQUIRE(read->entries.size() == 2);
  CHECK(read->entries[0].name == "a document, question 1");
  CHECK(read->entries[0].phases.at(1).first_token_ms == 1.25);
  CHECK(SameBits(read->entries[0].logits, record.entries[0].logits));
  CHECK_FALSE(SameBits({0.0f}, {-0.0f}));

  fs::resize_file(path, fs::file_size(path) / 2);
  CHECK_FALSE(ReadRecord(path).ok());
  directory.Write("record", "something else\n");
  CHECK_FALSE(ReadRecord(path).ok());
  CHECK(ReadRecord(directory / "missing").status().code() == absl::StatusCode::kUnavailable);
}

// What is said on stderr by a demonstration that can't be run.
std::string Refusal(const DemoOptions& options) {
  const Directory directory;
  {
    const kvist::test::StderrTo file(directory / "said");
    CHECK(RunDemo(options) == DemoResult::kError);
  }
  std::ostringstream said;
  said << std::ifstream(directory / "said").rdbuf();
  return said.str();
}

TEST_CASE("RunDemo says of a prompt that is too long which options make it fit") {
  const Directory directory;
  directory.Write("1", std::string(1500, 'x'));
  DemoOptions options;
  options.directories = {directory.path()};
  options.model = SmallModel()->config();
  options.engine.kv_tokens = 64;
  CHECK_THAT(Refusal(options), Catch::Contains(" tokens, context_max and kv_tokens allow 64; lower --document-bytes, ") &&
                                   Catch::EndsWith(" or raise --kv-tokens\n"));
}

TEST_CASE("RunDemo refuses phases that no record can hold before it computes, and writes records that it reads") {
  const Directory directory;
  directory.Write("documents/1", std::string(1500, 'x'));
  DemoOptions options;
  options.directories = {directory / "documents"};
  options.model = SmallModel()->config();
  options.workload = {.rounds = 1, .answer_tokens = 2};
  options.logits_out = directory / "logits";
  const auto refusal = [&](std::vector<std::string> phases) {
    options.phases = std::move(phases);
    const std::string said = Refusal(options);
    CHECK_FALSE(fs::exists(options.logits_out));
    return said;
  };
  const std::string allowed = "is no name; allowed: letters, digits, _ and -, with commas between names\n";
  CHECK(refusal({"cold", "a b"}) == "tinyllm: --phases: \"a b\" " + allowed);
  CHECK(refusal({""}) == "tinyllm: --phases: \"\" " + allowed);
  CHECK_THAT(refusal(std::vector<std::string>(17, "x")), Catch::StartsWith("tinyllm: --phases: 17 of them, after 0 in"));

  options.phases = {"cold", "A_1-z"};
  REQUIRE(RunDemo(options) == DemoResult::kEqual);
  options.logits_compare = std::exchange(options.logits_out, directory / "more");
  CHECK_THAT(refusal(std::vector<std::string>(15, "x")), Catch::StartsWith("tinyllm: --phases: 15 of them, after 2 in"));
  options.phases = {"cold"};
  REQUIRE(RunDemo(options) == DemoResult::kEqual);
  CHECK(ReadRecord(options.logits_out)->entries.at(0).phases.size() == 3);
}

TEST_CASE("RunDemo fails when a cold answer has loaded tokens, and takes a cold one that hasn't") {
  const Directory directory;
  directory.Write("documents/1", std::string(1500, 'x'));
  DemoOptions options;
  options.directories = {directory / "documents"};
  options.model = SmallModel()->config();
  options.workload.rounds = 1;
  options.workload.answer_tokens = 2;
  options.engine.kvist = KvistCache::Options{};
  fake_kvist::Reset();
  CHECK(RunDemo(options) == DemoResult::kEqual);
  CHECK(fake_kvist::observed().chunks > 0);
  CHECK(RunDemo(options) == DemoResult::kColdLoaded);  // what the first has stored is there still
  fake_kvist::Reset();
  CHECK(RunDemo(options) == DemoResult::kEqual);
  options.engine.kvist.reset();
  options.phases = {"cold", "cold"};
  CHECK(RunDemo(options) == DemoResult::kEqual);
}

}  // namespace
}  // namespace tinyllm
