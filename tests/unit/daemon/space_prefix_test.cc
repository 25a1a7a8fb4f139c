#include "daemon/rpc/space_prefix.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"

namespace kvist::rpc {
namespace {

NodeStatus::Space Space(const std::string& begin) {
  NodeStatus::Space space;
  space.digest = begin + std::string(64 - begin.size(), '0');
  space.tenant = "blue";
  space.model = "m";
  return space;
}

TEST_CASE("ResolveSpace finds the one space that begins so") {
  const std::vector<NodeStatus::Space> spaces = {Space("ab12"), Space("ab34"), Space("c")};
  CHECK(*ResolveSpace("ab1", spaces) == spaces[0].digest);
  CHECK(*ResolveSpace("AB34", spaces) == spaces[1].digest);
  CHECK(*ResolveSpace("c", spaces) == spaces[2].digest);
  CHECK(*ResolveSpace(spaces[1].digest, spaces) == spaces[1].digest);
}

TEST_CASE("ResolveSpace lists the spaces when none or several match") {
  const std::vector<NodeStatus::Space> spaces = {Space("ab12"), Space("ab34"), Space("c")};
  const absl::Status none = ResolveSpace("d", spaces).status();
  CHECK(none.code() == absl::StatusCode::kNotFound);
  CHECK(absl::StrContains(none.message(),
                          "ab12000000000000 (m, blue), ab34000000000000 (m, blue), c000000000000000 (m, blue)"));
  const absl::Status several = ResolveSpace("ab", spaces).status();
  CHECK(several.code() == absl::StatusCode::kInvalidArgument);
  CHECK(absl::StrContains(several.message(), "give more digits: ab12000000000000 (m, blue), ab34000000000000 (m, blue)"));
  CHECK(absl::StrContains(ResolveSpace("d", {}).status().message(), "there is none"));
  const std::vector<NodeStatus::Space> many(25, Space("a"));
  CHECK(absl::StrContains(ResolveSpace("a", many).status().message(), " and 5 more"));
}

TEST_CASE("ResolveSpace takes nothing but hex digits") {
  for (const std::string& wrong : {std::string(), std::string("x"), std::string("../a"), std::string(65, 'a')}) {
    INFO(wrong);
    CHECK(ResolveSpace(wrong, {Space("a")}).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace kvist::rpc
