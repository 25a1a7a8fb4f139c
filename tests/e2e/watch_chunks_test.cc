// What a real kvistd tells of its chunks: the service Feed of proto/node.proto, as a controller uses it.
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/controller/feed_wire.h"
#include "daemon/controller/node_feed.h"
#include "proto/node.grpc.pb.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

namespace api = kvist::node::v1;
using kvist::ChunkKey;
using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::TempDir;
using namespace kvist::controller;  // NOLINT(google-build-using-namespace): what a feed says

namespace {

constexpr uint32_t kChunks = 6;  // of a prompt
constexpr std::chrono::seconds kTime(30);
const std::vector<std::string> kSettings{"pool.bytes=8MiB", "pool.touch_threads=0", "ssd.enabled=false"};

std::unique_ptr<grpc::ClientContext> NewContext() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + kTime);
  return context;
}

std::shared_ptr<grpc::Channel> ChannelTo(const DaemonProcess& daemon) {
  grpc::ChannelArguments own;  // connections of its own
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("unix:" + daemon.admin_socket(), grpc::InsecureChannelCredentials(), own);
}

// One who watches, and what it knows then.
class Watcher {
 public:
  using Chunks = std::map<std::pair<uint32_t, ChunkKey>, uint8_t>;  // (space, key) -> tiers

  explicit Watcher(const DaemonProcess& daemon, std::optional<NodeFeed::Position> from = {})
      : stub_(api::Feed::NewStub(ChannelTo(daemon))) {
    api::WatchChunksRequest request;
    if (from.has_value()) {
      request.mutable_position()->set_epoch(from->epoch);
      request.mutable_position()->set_sequence(from->sequence);
      at_ = *from;
    }
    reader_ = stub_->WatchChunks(context_.get(), request);
  }
  ~Watcher() { context_->TryCancel(); }

  // The next message, taken; none when the stream has ended.
  std::optional<FeedMessage> Next() {
    api::ChunkNews news;
    if (!reader_->Read(&news)) return std::nullopt;
    absl::StatusOr<FeedMessage> message = FromNews(news);
    REQUIRE(message.ok());
    std::visit([this](const auto& told) { Take(told); }, *message);
    return *std::move(message);
  }
  // Reads until what is known is this.
  template <class Is>
  void Until(Is is) {
    while (!is()) REQUIRE(Next().has_value());
  }
  void UntilShown() {
    Until([this] { return ends == begins && ends > 0; });
  }
  void UntilHolds(size_t chunks) {
    Until([&] { return shown.size() == chunks && ends == begins; });
  }
  grpc::Status Finish() { return reader_->Finish(); }
  NodeFeed::Position at() const { return at_; }

  Chunks shown;
  int begins = 0, ends = 0, spaces = 0, beats = 0;

 private:
  void Set(const std::vector<ChunkState>& chunks) {
    Chunks& known = begins > ends ? filling_ : shown;
    for (const ChunkState& chunk : chunks) {
      if (chunk.tiers.none()) {
        known.erase({chunk.space.value, chunk.key});
      } else {
        known[{chunk.space.value, chunk.key}] = chunk.tiers.bits;
      }
    }
  }
  void Take(const SpaceIntroduced& space) {
    CHECK(space.model == "fake-model");
    CHECK(space.chunk_tokens.value == FakeEngine::kChunkTokens);
    ++spaces;
  }
  void Take(const SnapshotBegin& begin) {
    ends = begins++;
    filling_.clear();
    slices_ = 0;
    at_ = {begin.epoch, begin.sequence};
  }
  void Take(const SnapshotSlice& slice) {
    REQUIRE(slice.index == slices_++);
    Set(slice.chunks);
  }
  void Take(const SnapshotEnd& end) {
    REQUIRE(end.slices == slices_);
    ends = begins;
    shown = std::move(filling_);
  }
  void Take(const ChangeBatch& batch) {
    REQUIRE(batch.epoch == at_.epoch);
    REQUIRE(batch.after == at_.sequence);
    at_.sequence = batch.up_to;
    if (batch.after == batch.up_to) ++beats;
    Set(batch.chunks);
  }

  std::unique_ptr<api::Feed::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_ = NewContext();
  std::unique_ptr<grpc::ClientReader<api::ChunkNews>> reader_;
  Chunks filling_;
  uint32_t slices_ = 0;
  NodeFeed::Position at_;
};

void Store(FakeEngine* engine, uint32_t prompt) {
  REQUIRE(engine->StoreAll(engine->Keys(prompt, kChunks)).status == KVIST_OK);
}

void Clear(const DaemonProcess& daemon, std::optional<uint32_t> prompt) {
  const auto stub = api::Node::NewStub(ChannelTo(daemon));
  const auto context = NewContext();
  if (!prompt.has_value()) {
    api::Job job;
    REQUIRE(stub->Clear(context.get(), {}, &job).ok());
    return;
  }
  api::ClearPromptRequest request;
  for (const uint32_t token : FakeEngine::Tokens(*prompt, kChunks)) request.mutable_prompt()->add_tokens(token);
  api::PromptJobsReply reply;
  REQUIRE(stub->ClearPrompt(context.get(), request, &reply).ok());
}

}  // namespace

TEST_CASE("A watcher is told what is there, and then what is stored and cleared") {
  const TempDir dir;
  const DaemonProcess daemon(dir / "", kSettings);
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  Store(&engine, 1000);
  Watcher watcher(daemon);
  watcher.UntilShown();
  REQUIRE(watcher.shown.size() == kChunks);
  for (const kvist_key& key : engine.Keys(1000, kChunks)) {
    ChunkKey named;
    std::copy(std::begin(key.bytes), std::end(key.bytes), named.bytes.begin());
    CHECK(watcher.shown.at({0, named}) == 1);  // DRAM
  }
  CHECK(watcher.spaces == 1);

  Store(&engine, 2000);
  watcher.UntilHolds(size_t{2} * kChunks);
  Clear(daemon, 1000);
  watcher.UntilHolds(kChunks);
  CHECK(watcher.begins == 1);
  Clear(daemon, {});
  watcher.UntilHolds(0);
  CHECK(watcher.begins == 2);  // hidden all at once
  Store(&engine, 1000);
  watcher.UntilHolds(kChunks);
}

TEST_CASE("A watcher of a node where nothing happens hears that it lives") {
  const TempDir dir;
  const DaemonProcess daemon(dir / "", kSettings);
  Watcher watcher(daemon);
  watcher.Until([&] { return watcher.beats >= 2; });
  CHECK(watcher.shown.empty());
  CHECK(watcher.begins == 1);
}

TEST_CASE("Who returns goes on where it was, and begins anew when the node has died meanwhile") {
  const TempDir dir;
  DaemonProcess daemon(dir / "", kSettings);
  NodeFeed::Position at;
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    {
      Watcher watcher(daemon);
      Store(&engine, 1000);
      watcher.UntilHolds(kChunks);
      at = watcher.at();
    }
    Store(&engine, 2000);
    Watcher watcher(daemon, at);
    watcher.UntilHolds(kChunks);  // those of the second prompt alone: it knows the others
    CHECK(watcher.begins == 0);
    at = watcher.at();
  }
  daemon.Kill();
  daemon.Start();
  Watcher watcher(daemon, at);
  watcher.UntilShown();
  CHECK(watcher.at().epoch != at.epoch);
}

TEST_CASE("A kvistd that stops says so to who watches") {
  const TempDir dir;
  DaemonProcess daemon(dir / "", kSettings);
  Watcher watcher(daemon);
  watcher.UntilShown();
  int status = -1;
  std::thread stops([&] { status = daemon.Terminate(); });
  while (watcher.Next().has_value()) {}
  stops.join();
  CHECK(status == 0);
  const grpc::Status why = watcher.Finish();
  CHECK(why.error_code() == grpc::UNAVAILABLE);
  CHECK(why.error_message() == "the node is stopping");
}

TEST_CASE("A watcher that doesn't read holds up neither engines nor others, and is told all when it does") {
  const TempDir dir;
  const DaemonProcess daemon(dir / "", kSettings);
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  Watcher slow(daemon);
  slow.UntilShown();
  Watcher quick(daemon);
  for (uint32_t prompt = 1; prompt <= 600; ++prompt) Store(&engine, prompt * 1000);  // more than the pool has room for
  slow.UntilShown();
  Watcher fresh(daemon);
  fresh.UntilShown();
  REQUIRE(fresh.shown.size() > kChunks);
  for (Watcher* watcher : {&slow, &quick}) watcher->Until([&] { return watcher->shown == fresh.shown; });
}

TEST_CASE("Eight watch a node at most, and one who leaves makes room") {
  const TempDir dir;
  const DaemonProcess daemon(dir / "", kSettings);
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (int i = 0; i < 8; ++i) {
    watchers.push_back(std::make_unique<Watcher>(daemon));
    watchers.back()->UntilShown();
  }
  Watcher ninth(daemon);
  REQUIRE_FALSE(ninth.Next().has_value());
  CHECK(ninth.Finish().error_code() == grpc::RESOURCE_EXHAUSTED);
  watchers.pop_back();
  const auto end = std::chrono::steady_clock::now() + kTime;
  for (bool in = false; !in;) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    in = Watcher(daemon).Next().has_value();
  }
  // They have their threads, and operators still get answers.
  const auto context = NewContext();
  api::StatusReply reply;
  CHECK(api::Node::NewStub(ChannelTo(daemon))->Status(context.get(), {}, &reply).ok());
}
