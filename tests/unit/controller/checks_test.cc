#include "daemon/controller/checks.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/controller/node_name.h"
#include "daemon/controller/replies.h"

namespace kvist::controller {
namespace {

void Refused(const absl::Status& status, const std::string& field) {
  INFO(status.ToString() << " for " << field);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(absl::StartsWith(status.message(), field));
}

node::v1::Prompt PromptOf(int count, uint32_t token = 7) {
  node::v1::Prompt prompt;
  prompt.mutable_tokens()->Resize(count, token);
  return prompt;
}

TEST_CASE("CheckPrompt names the field that is wrong, and takes as much as a node's message holds") {
  const node::v1::SpaceFilter all;
  CHECK(CheckPrompt(all, PromptOf(1)).ok());
  Refused(CheckPrompt(all, {}), "prompt: ");
  // A token of a byte, and the three of field and length beside the 4 of the longest length.
  CHECK(CheckPrompt(all, PromptOf(static_cast<int>(kPromptBytesMax) - 8)).ok());
  Refused(CheckPrompt(all, PromptOf(static_cast<int>(kPromptBytesMax) + 1)), "prompt.tokens: ");
  CHECK(CheckPrompt(all, PromptOf(1'048'576, 200'000)).ok());  // of a large vocabulary
  Refused(CheckPrompt(all, PromptOf(1'048'576, 3'000'000'000)), "prompt.tokens: 1048576 tokens");

  node::v1::Prompt keys;
  for (int i = 0; i < 4096; ++i) keys.add_keys(std::string(32, 'k'));
  CHECK(CheckPrompt(all, keys).ok());
  keys.add_keys(std::string(32, 'k'));
  Refused(CheckPrompt(all, keys), "prompt.keys: 4097");
  *keys.mutable_tokens() = PromptOf(1).tokens();
  Refused(CheckPrompt(all, keys), "prompt: it has tokens and keys");

  node::v1::SpaceFilter filter;
  filter.set_digest("0g");
  Refused(CheckPrompt(filter, PromptOf(1)), "space.digest: ");
  filter.set_digest("");
  filter.set_model(std::string(256, 'm'));
  Refused(CheckPrompt(filter, PromptOf(1)), "space.model: ");
  filter.set_model("");
  filter.set_tenant(std::string(256, 't'));
  Refused(CheckPrompt(filter, PromptOf(1)), "space.tenant: ");
}

TEST_CASE("CheckTier and CheckRequestName refuse what no node has") {
  for (const char* tier : {"dram", "ssd", "remote:s3"}) CHECK(CheckTier("tier", tier).ok());
  for (const char* tier : {"", "DRAM", "remote", "remote:", "gpu", "ssd "})
    Refused(CheckTier("source.tier", tier), "source.tier: ");
  CHECK(CheckRequestName(std::string(kRequestNameMax, 'r')).ok());
  Refused(CheckRequestName(std::string(kRequestNameMax + 1, 'r')), "request: 48 bytes");
}

TEST_CASE("ReadId reads what MakeId makes, and nothing else") {
  const auto id = ReadId("job", MakeId("node-a.rack_1", 18'446'744'073'709'551'615u));
  REQUIRE(id.ok());
  CHECK(id->node == "node-a.rack_1");
  CHECK(id->number == 18'446'744'073'709'551'615u);
  for (const char* wrong : {"", "/", "node-a", "node-a/", "/17", "node-a/-1", "node-a/+1", "node-a/ 1", "node-a/1 ",
                            "node-a/0x1", "node-a/18446744073709551616", "a/b/1", "a b/1", "node-a/1/"}) {
    Refused(ReadId("job", wrong).status(), "job: ");
  }
}

TEST_CASE("IsNodeName takes host names, and no more") {
  for (const std::string& name : {std::string("a"), std::string("Node_1.rack-2"), std::string(64, 'n')})
    CHECK(IsNodeName(name));
  for (const std::string& name :
       {std::string(), std::string(65, 'n'), std::string("a/b"), std::string("a b"), std::string("\xc3\xa5")})
    CHECK_FALSE(IsNodeName(name));
}

TEST_CASE("ToOutcome keeps codes, and escapes what protobuf would refuse") {
  const v1::Outcome outcome = ToOutcome("node-a", absl::NotFoundError("no \xff"));
  CHECK(outcome.node() == "node-a");
  CHECK(outcome.code() == 5);
  CHECK(outcome.message() == "no \\xff");
  CHECK(ToOutcome("node-a", absl::OkStatus()).code() == 0);
}

}  // namespace
}  // namespace kvist::controller
