// Shards in a real Redis that somebody else writes to, too.
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "storage/remote/guarded_store.h"
#include "storage/remote/redis_store.h"
#include "storage/remote/sealed_store.h"
#include "tests/support/redis_server.h"
#include "tests/unit/remote/asked.h"
#include "tests/unit/remote/redis_keys.h"

namespace kvist::remote {
namespace {

constexpr uint64_t kSealedPart = 16 << 10;

struct Tier {
  Tier(const test::RedisServer& server, const ObjectSealer::Options& options) {
    RedisOptions redis;
    redis.address = server.address();
    redis.part = {kSealedPart};
    store = std::make_unique<SealedStore>(*GuardedStore::Create(*RedisStore::Create(redis), {}), options);
  }
  absl::Status Put(const Identity& identity, std::span<const std::byte> body, uint64_t epoch = 1) {
    Answer<absl::Status> answer;
    const SealedStore::Put put{identity, {epoch, {}}, body};
    REQUIRE(store->Submit(std::span(&put, 1), In(absl::Seconds(20)), answer.Done()).ok());
    return answer.Wait()[0];
  }
  Verdict Get(const Identity& identity, std::span<std::byte> into, uint64_t epoch_min = 0) {
    Answer<SealedStore::Got> answer;
    const SealedStore::Get get{identity, epoch_min, into};
    REQUIRE(store->Submit(std::span(&get, 1), In(absl::Seconds(20)), answer.Done()).ok());
    const SealedStore::Got got = answer.Wait()[0];
    REQUIRE(got.status.ok());
    if (got.verdict == Verdict::kGood) CHECK(got.bytes.value == into.size());
    return got.verdict;
  }
  std::unique_ptr<SealedStore> store;
};

TEST_CASE("SealedStore gives what was put under its name on another node, and nothing else") {
  const bool encrypt = GENERATE(false, true);
  test::RedisServer server;
  Tier tier(server, {SecretOf(1), encrypt});
  Tier other_node(server, {SecretOf(1), encrypt});
  Tier stranger(server, {SecretOf(2), encrypt});
  Tier other_cipher(server, {SecretOf(1), !encrypt});
  const ObjectSealer sealer({SecretOf(1), encrypt});
  const Identity identity = IdentityOf(1);
  const std::string key = absl::StrCat("kvist:{", sealer.NameOf(identity), "}");
  const std::string other_key = absl::StrCat("kvist:{", sealer.NameOf(IdentityOf(2)), "}");
  const auto body = Pattern(3 * kSealedPart + 7, 1);
  std::vector<std::byte> room(body.size());
  CHECK(tier.Get(identity, room) == Verdict::kMissing);
  REQUIRE(tier.Put(identity, body).ok());
  REQUIRE(tier.Put(IdentityOf(2), body).ok());
  CHECK(other_node.Get(identity, room) == Verdict::kGood);
  CHECK(room == body);
  CHECK(stranger.Get(identity, room) == Verdict::kMissing);
  CHECK(other_cipher.Get(identity, room) == Verdict::kCipher);
  CHECK(tier.Get(identity, room, 2) == Verdict::kStale);
  CHECK(tier.Get(identity, std::span(room).first(room.size() - 1)) == Verdict::kTooLong);

  // Somebody writes to the store.
  server.Command({"COPY", other_key, key, "REPLACE"});
  for (int part = 1; part <= 3; ++part)
    server.Command({"COPY", PartKey(server, other_key, part), PartKey(server, key, part), "REPLACE"});
  CHECK(tier.Get(identity, room) == Verdict::kOther);
  const auto changed_at = [&](int part, uint64_t at) {
    REQUIRE(tier.Put(identity, body).ok());
    const std::string where = part == 0 ? key : PartKey(server, key, part);
    server.Command({"SETRANGE", where, absl::StrCat(at), "\x01\xff\x03"});
    return tier.Get(identity, room);
  };
  CHECK(changed_at(0, 0) == Verdict::kNoObject);  // the store's own prefix
  CHECK(changed_at(0, 24) == Verdict::kNoObject);
  CHECK(changed_at(0, 24 + 8) == Verdict::kVersion);
  CHECK(changed_at(0, 24 + 20) == Verdict::kDamagedHeader);
  CHECK(changed_at(0, 24 + 170) == Verdict::kForeign);
  CHECK(changed_at(0, 24 + 192) == Verdict::kCorrupt);
  CHECK(changed_at(2, 100) == Verdict::kCorrupt);
  REQUIRE(tier.Put(identity, body).ok());
  server.Command({"DEL", PartKey(server, key, 3)});
  CHECK(tier.Get(identity, room) == Verdict::kTruncated);
  server.Command({"SET", key, "x"});
  CHECK(tier.Get(identity, room) == Verdict::kNoObject);
  REQUIRE(tier.Put(identity, body).ok());
  CHECK(tier.Get(identity, room) == Verdict::kGood);
  CHECK(room == body);

  const auto verdicts = tier.store->verdicts();
  CHECK(verdicts[static_cast<size_t>(Verdict::kGood)] == 1);
  CHECK(verdicts[static_cast<size_t>(Verdict::kCorrupt)] == 2);
  CHECK(verdicts[static_cast<size_t>(Verdict::kNoObject)] == 3);
  Answer<Outcome> removed;
  REQUIRE(tier.store->Remove(std::span(&identity, 1), {body.size()}, In(absl::Seconds(20)), removed.Done()).ok());
  REQUIRE(removed.Wait()[0].status.ok());
  Answer<Outcome> exists;
  REQUIRE(tier.store->Exists(std::span(&identity, 1), In(absl::Seconds(20)), exists.Done()).ok());
  CHECK(exists.Wait()[0].found == Found::kNo);
  CHECK(tier.store->load().bytes == 0);
}

}  // namespace
}  // namespace kvist::remote
