#include "daemon/rpc/roles.h"

#include <google/protobuf/descriptor.h>

#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/rpc/client_name.h"
#include "proto/controller.pb.h"
#include "proto/node.pb.h"

namespace kvist::rpc {
namespace {

constexpr char kStatus[] = "/kvist.node.v1.Node/Status";
constexpr char kClear[] = "/kvist.node.v1.Node/Clear";

TEST_CASE("CallRoles has every call of our services, and no other of theirs") {
  size_t calls = 0;
  for (const auto* file : {node::v1::StatusReply::descriptor()->file(), controller::v1::HealthReply::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        const std::string path = absl::StrCat("/", file->service(s)->full_name(), "/", file->service(s)->method(m)->name());
        INFO(path << ": give it a row in daemon/rpc/roles.cc");
        CHECK(CallRoles().count(path) == 1);
        ++calls;
      }
    }
  }
  CHECK(calls > 30);
  size_t rows = 0;
  for (const auto& [path, role] : CallRoles()) rows += absl::StartsWith(path, "/kvist.") ? 1 : 0;
  CHECK(rows == calls);
}

TEST_CASE("What changes something takes the role operate, and what asks takes read") {
  for (const auto& [path, role] : CallRoles()) {
    INFO(path);
    bool asks = absl::StartsWith(path, "/grpc.");
    for (const char* word : {"/Status", "/Ssd", "/Sessions", "/List", "/Lookup", "/QueryIp", "/Get", "/Watch", "/Health"})
      asks = asks || absl::StrContains(path, word);
    CHECK((role == Role::kRead) == asks);
  }
}

TEST_CASE("MayCall lets a client do what its role says, and nobody anything without one") {
  const Roles roles{{"cn:prometheus", Role::kRead}, {"dns:router.example", Role::kOperate}};
  CHECK(MayCall(roles, {"cn:prometheus"}, kStatus).ok());
  CHECK(absl::IsPermissionDenied(MayCall(roles, {"cn:prometheus"}, kClear)));
  CHECK(MayCall(roles, {"dns:router.example"}, kStatus).ok());
  CHECK(MayCall(roles, {"dns:router.example"}, kClear).ok());
  CHECK(MayCall(roles, {"cn:prometheus", "dns:router.example"}, kClear).ok());
  CHECK(MayCall(roles, {"dns:router.example", "cn:prometheus"}, kClear).ok());
  for (const char* stranger : {"cn:router.example", "dns:prometheus", "dns:router.example.", "dns:router.exampl", "", "cn:"})
    CHECK(absl::IsPermissionDenied(MayCall(roles, {stranger}, kStatus)));
  CHECK(absl::IsPermissionDenied(MayCall(roles, {std::string("dns:router.example\0", 19)}, kStatus)));
  CHECK(absl::IsPermissionDenied(MayCall(roles, {}, kStatus)));
  CHECK(absl::IsPermissionDenied(MayCall({}, {"cn:prometheus"}, kStatus)));
  for (const char* path : {"", "/", "kvist.node.v1.Node/Status", "/kvist.node.v1.Node/status", "/kvist.node.v1.Node/New"})
    CHECK(absl::IsPermissionDenied(MayCall(roles, {"dns:router.example"}, path)));
}

TEST_CASE("MayCall says who was refused, and what would grant it") {
  const Roles roles{{"cn:prometheus", Role::kRead}};
  CHECK(MayCall(roles, {"cn:prometheus"}, kClear).message() ==
        "\"cn:prometheus\" has the role read; /kvist.node.v1.Node/Clear takes operate. [roles] of the configuration can "
        "give it: "
        "\"cn:prometheus\" = \"operate\"");
  CHECK(MayCall(roles, {"dns:a", "cn:b"}, kStatus).message() ==
        "\"dns:a\", \"cn:b\" has no role; /kvist.node.v1.Node/Status takes read. [roles] of the configuration can give it: "
        "\"dns:a\" = \"read\"");
  // A key that [roles] takes, whatever else the certificate names.
  CHECK(absl::StrContains(MayCall(roles, {"dns:*.example.com", "cn:b"}, kStatus).message(), "can give it: \"cn:b\" = "));
  CHECK(absl::StrContains(MayCall(roles, {"dns:*"}, kStatus).message(), "can give it: \"dns:NAME\" = "));
  CHECK(absl::StrContains(MayCall(roles, {"cn:\x1b[2J"}, kStatus).message(), "cn:\\x1b[2J"));
}

TEST_CASE("IsClientName takes a kind and a name") {
  for (const char* good : {"cn:prometheus", "dns:a.example", "uri:spiffe://a/b?c=d", "cn:My router"})
    CHECK(IsClientName(good));
  for (const char* wrong :
       {"", "cn", "cn:", "prometheus", "CN:a", "email:a@b", "san:a", "cn:\n", "cn:\xc3\xa5", "dns:*", "dns:*.a", "cn:*"})
    CHECK_FALSE(IsClientName(wrong));
  CHECK_FALSE(IsClientName("cn:" + std::string(253, 'x')));
}

}  // namespace
}  // namespace kvist::rpc
