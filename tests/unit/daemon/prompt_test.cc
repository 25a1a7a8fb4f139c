#include "daemon/rpc/prompt.h"

#include <catch2/catch.hpp>
#include <string>

#include "daemon/ctl/prompt_file.h"
#include "daemon/rpc/requests.h"
#include "storage/base/chunk_key.h"

namespace kvist::rpc {
namespace {

using Catch::Contains;

std::string WhyNot(const node::v1::Prompt& prompt) {
  const absl::StatusOr<Prompt> read = ReadPrompt(prompt);
  CHECK(read.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(read.status().message());
}

TEST_CASE("A prompt's keys are those that an engine makes of its tokens, salt and adapter") {
  node::v1::Prompt prompt;
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < 70; ++i) {
    prompt.add_tokens(i * 7);
    tokens.push_back(i * 7);
  }
  for (const char* salt : {"", "tenant-7"}) {
    prompt.set_salt(salt);
    prompt.set_lora("adapter");
    KeyChain chain(Tokens{16}, {.lora = "adapter", .salt = salt});
    chain.Append(tokens);
    const std::vector<ChunkKey> keys = ReadPrompt(prompt)->KeysOf(16);
    CHECK(keys.size() == 4);  // and a tail of 6 tokens
    CHECK(std::equal(keys.begin(), keys.end(), chain.keys().begin(), chain.keys().end()));
    CHECK(ReadPrompt(prompt)->KeysOf(71).empty());
  }
  Prompt vast;
  vast.tokens.resize(Prompt::kChunksMax * 2 + 1);
  CHECK(vast.KeysOf(1).size() == Prompt::kChunksMax);
  CHECK(vast.KeysOf(2).size() == Prompt::kChunksMax);
  CHECK(vast.KeysOf(UINT32_MAX).empty());
  // Keys are taken as they are, whatever the space's chunks hold.
  node::v1::Prompt by_keys;
  by_keys.add_keys(std::string(32, 'k'));
  CHECK(ReadPrompt(by_keys)->KeysOf(16).size() == 1);
  CHECK(ReadPrompt(by_keys)->KeysOf(16)[0].bytes[31] == 'k');
}

TEST_CASE("A prompt or filter that says nothing or too much is refused by the field's name") {
  node::v1::Prompt prompt;
  CHECK_THAT(WhyNot(prompt), Contains("prompt: it has neither tokens nor keys"));
  prompt.add_keys(std::string(31, 'k'));
  CHECK_THAT(WhyNot(prompt), Contains("prompt.keys[0]: 31 bytes; a key has 32"));
  prompt.add_tokens(1);
  CHECK_THAT(WhyNot(prompt), Contains("tokens and keys"));
  prompt.clear_tokens();
  prompt.set_salt("s");
  CHECK_THAT(WhyNot(prompt), Contains("prompt.keys: salt and lora"));
  prompt.clear_salt();
  for (size_t i = 0; i < Prompt::kChunksMax; ++i) prompt.add_keys(std::string(32, 'k'));
  CHECK_THAT(WhyNot(prompt), Contains("4097 keys; allowed: at most 4096"));
  prompt.clear_keys();
  prompt.add_tokens(1);
  prompt.set_salt(std::string(Prompt::kNameMax + 1, 's'));
  CHECK_THAT(WhyNot(prompt), Contains("prompt.salt"));

  node::v1::SpaceFilter filter;
  CHECK(ReadFilter(filter)->Fits("ab12", "llama", "blue"));
  filter.set_digest("AB");
  filter.set_tenant("blue");
  CHECK(ReadFilter(filter)->Fits("ab12", "llama", "blue"));
  CHECK_FALSE(ReadFilter(filter)->Fits("ab12", "llama", "blu"));
  CHECK_FALSE(ReadFilter(filter)->Fits("a", "llama", "blue"));
  for (const std::string& wrong : {std::string("xy"), std::string(65, 'a'), std::string("a b"), std::string("\0", 1)}) {
    filter.set_digest(wrong);
    CHECK_THAT(std::string(ReadFilter(filter).status().message()), Contains("space.digest"));
  }
}

TEST_CASE("A file of tokens or keys is read as people and programs write it, or the wrong word is named") {
  using ctl::ParseKeys;
  using ctl::ParseTokens;
  for (const char* text : {"1 2 4294967295", "[1, 2,4294967295]\n", "1,2,\t4294967295,"}) {
    const auto prompt = ParseTokens(text);
    REQUIRE(prompt.ok());
    CHECK(std::vector<uint32_t>(prompt->tokens().begin(), prompt->tokens().end()) ==
          std::vector<uint32_t>{1, 2, 4294967295});
  }
  const auto why = [](const auto& parsed) { return std::string(parsed.status().message()); };
  CHECK_THAT(why(ParseTokens("1 2 x3 4")), Contains("word 3 is no token id: \"x3\""));
  CHECK_THAT(why(ParseTokens("4294967296")), Contains("word 1"));
  CHECK_THAT(why(ParseTokens("-1")), Contains("word 1"));
  CHECK_THAT(why(ParseTokens("\033[2J")), Contains("\\x1b"));
  CHECK_THAT(why(ParseTokens(" \n")), Contains("no token ids"));
  const std::string key(64, 'a');
  REQUIRE(ParseKeys(key + "\n" + key).ok());
  CHECK(ParseKeys(key)->keys(0) == std::string(32, '\xaa'));
  CHECK_THAT(why(ParseKeys(key + " " + key + "0")), Contains("word 2 is no chunk key"));
  CHECK_THAT(why(ParseKeys(std::string(64, 'g'))), Contains("word 1"));
  CHECK_THAT(why(ParseKeys("")), Contains("no keys"));
  CHECK_THAT(why(ctl::ReadTokens("/tmp")), Contains("is a directory"));
  CHECK(ctl::ReadTokens("/nowhere/at/all").status().code() == absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvist::rpc
