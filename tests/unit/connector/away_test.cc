// The connector when there is no daemon: everything is a miss, at once, and wrong arguments are still told apart.
#include <fcntl.h>
#include <kvist/client.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"

namespace {

struct Engine {
  static constexpr uint32_t kPages = 8, kBytes = 256;
  int fd = ::memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  std::vector<int> memfds;  // of one that describes more
  kvist_layer layer{0, 0};
  kvist_memory memory{};
  kvist_space space{sizeof(kvist_space), "m",     nullptr, "u8", nullptr, 1, 16, 16, kBytes, 1, 0, 0,
                    KVIST_LAYER_MAJOR,   nullptr, 0};
  kvist_options options{};
  std::vector<kvist_group> groups;
  std::vector<char> wrong_place;
  int pages_written = 0;
  bool write_wrongly = false;

  Engine() {
    REQUIRE(::ftruncate(fd, kPages * kBytes) == 0);
    REQUIRE(::fcntl(fd, F_ADD_SEALS, F_SEAL_GROW) == 0);
    memory.struct_size = sizeof memory;
    memory.memfds = &fd;
    memory.memfd_count = 1;
    memory.layers = &layer;
    memory.layer_count = 1;
    memory.pages = kPages;
    memory.page_stride = kBytes;
    memory.context = this;
    memory.write_page = [](void* context, uint32_t, uint32_t page, const void* bytes, size_t size) {
      auto* e = static_cast<Engine*>(context);
      ++e->pages_written;
      return ::pwrite(e->fd, bytes, size, e->write_wrongly ? 8 : page * kBytes) == static_cast<ssize_t>(size) ? 0 : 1;
    };
    options.struct_size = sizeof options;
    options.socket = "/nonexistent/kvist.sock";
    options.instance = "e";
    options.role = KVIST_WORKER;
    options.space = &space;
    options.memory = &memory;
    options.connect_timeout_us = 1000;
  }
  ~Engine() { ::close(fd); }

  // What the space says, as a group of it.
  kvist_group OneGroup() const {
    kvist_group group{};
    group.struct_size = sizeof group;
    group.layers = space.layers;
    group.segments = space.segments;
    group.segment_bytes = space.segment_bytes;
    return group;
  }
  void UseGroups(std::vector<kvist_group> use) {
    groups = std::move(use);
    space.groups = groups.data();
    space.group_count = groups.size();
    space.layers = space.segments = 0;
    space.segment_bytes = 0;
  }
};

}  // namespace

TEST_CASE("Client without a daemon misses at once and says so") {
  Engine engine;
  kvist::Client client;
  REQUIRE(kvist::Client::Connect(engine.options, &client).ok());
  CHECK(client.connection() == KVIST_RECONNECTING);
  const std::vector<kvist_key> keys(4);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) {
    const kvist::Hit hit = client.Lookup(keys, 1'000'000, 1'000'000);
    REQUIRE(hit.status == KVIST_UNAVAILABLE);
    REQUIRE(hit.chunks == 0);
    REQUIRE(!hit.lease);
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));  // waiting for each would take a thousand
  CHECK(client.StartLookup(keys, 1'000'000) == 0);
  CHECK(std::string(kvist_error()).find("away") != std::string::npos);
  const std::vector<uint32_t> pages(4);
  CHECK(client.Store(keys, 0, pages) == 0);
  CHECK(std::string(kvist_error()).find("away") != std::string::npos);
  CHECK(client.WaitConnected(1000).code == KVIST_DEADLINE_EXCEEDED);
}

TEST_CASE("What isn't known of an operation is never said to be well") {
  kvist::Client none;
  CHECK(none.Wait(1, 1000).status == KVIST_INTERNAL);
  CHECK(none.Poll(1).status == KVIST_INTERNAL);
  CHECK(none.Poll(1).pages_released == 0);
  Engine engine;
  kvist::Client client;
  REQUIRE(kvist::Client::Connect(engine.options, &client).ok());
  CHECK(client.Wait(12345, 1000).status == KVIST_INVALID_ARGUMENT);
}

TEST_CASE("kvist_wait_connected waits as long as it is told; 0 only asks") {
  Engine engine;
  kvist_client* client = nullptr;
  REQUIRE(kvist_connect(&engine.options, &client) == KVIST_OK);
  const auto start = std::chrono::steady_clock::now();
  CHECK(kvist_wait_connected(client, 0) == KVIST_DEADLINE_EXCEEDED);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(500));  // the default deadline is 1 s
  kvist_disconnect(client);
}

TEST_CASE("What is thrown behind the C ABI is a status there") {
  kvist_chain_options options{};
  options.struct_size = sizeof options;
  options.chunk_tokens = 1;
  kvist_chain* chain = nullptr;
  REQUIRE(kvist_chain_create(&options, &chain) == KVIST_OK);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  const std::vector<uint32_t> tokens(1 << 20);
  if (!kvist::test::kSanitized) {  // which reserve addresses, and end a process that gets no memory
    rlimit little = before;
    little.rlim_cur = 1;  // nothing more
    REQUIRE(::setrlimit(RLIMIT_AS, &little) == 0);
    kvist_status status = KVIST_OK;
    for (int i = 0; i < 64 && status == KVIST_OK; ++i) status = kvist_chain_append(chain, tokens.data(), tokens.size());
    REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
    CHECK(status == KVIST_RESOURCE_EXHAUSTED);
    CHECK(std::string(kvist_error()) == "out of memory");
    // What is lost is missing in every later key: there are none.
    size_t keys = 0, later = 0;
    (void)kvist_chain_keys(chain, &keys);
    CHECK(kvist_chain_append(chain, tokens.data(), 1) == KVIST_FAILED_PRECONDITION);
    CHECK(kvist_chain_bind(chain, "image", 5) == KVIST_FAILED_PRECONDITION);
    (void)kvist_chain_keys(chain, &later);
    CHECK(later == keys);
  }
  kvist_chain_destroy(chain);
}

TEST_CASE("kvist_connect says so when there is no thread to be had") {
  Engine engine;
  // No address space holds a stack of this size, so pthread_create fails as it does at the limits of processes and threads, which root
  // doesn't have.
  pthread_attr_t before, huge;
  REQUIRE(::pthread_getattr_default_np(&before) == 0);
  REQUIRE(::pthread_attr_init(&huge) == 0);
  REQUIRE(::pthread_attr_setstacksize(&huge, size_t{1} << 47) == 0);
  REQUIRE(::pthread_setattr_default_np(&huge) == 0);
  kvist_client* client = nullptr;
  const kvist_status status = kvist_connect(&engine.options, &client);
  const std::string message = kvist_error();
  REQUIRE(::pthread_setattr_default_np(&before) == 0);
  CHECK(status == KVIST_RESOURCE_EXHAUSTED);
  CHECK(client == nullptr);
  INFO(message);
  CHECK(message.find("thread") != std::string::npos);
  CHECK(message.find("ulimit -u") != std::string::npos);
  // Nothing of it stays: the next one is served.
  REQUIRE(kvist_connect(&engine.options, &client) == KVIST_OK);
  kvist_disconnect(client);
}

TEST_CASE("A client is disconnected in time while a kvistd that stands still is to shake hands with it") {
  const kvist::test::TempDir dir;
  const std::string path = dir.path() + "/engine.sock";
  const int listening = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof address.sun_path);
  std::strcpy(address.sun_path, path.c_str());
  REQUIRE(::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(listening, 64) == 0);
  Engine engine;
  engine.options.socket = path.c_str();
  engine.options.connect_timeout_us = 20'000;
  kvist_client* client = nullptr;
  REQUIRE(kvist_connect(&engine.options, &client) == KVIST_OK);
  // Its keeper tries again: then it has sent a Hello, and holds its end open. What kvist_connect has tried is closed.
  bool waits = false;
  while (!waits) {
    pollfd come{listening, POLLIN, 0};
    REQUIRE(::poll(&come, 1, 10'000) == 1);
    const int socket = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    char hello[4096];
    REQUIRE(::recv(socket, hello, sizeof hello, 0) > 0);
    pollfd closed{socket, POLLIN, 0};
    waits = ::poll(&closed, 1, 0) == 0;
    if (!waits) ::close(socket);
  }
  const auto begin = std::chrono::steady_clock::now();
  kvist_disconnect(client);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("disconnected after %.3f s from a kvistd that doesn't answer\n", took.count());
  CHECK(took.count() < 3);  // asked is 1, and a busy machine adds
  ::close(listening);
}

TEST_CASE("kvist_connect names what is wrong with the options") {
  const auto refusal = [](auto change) {
    Engine engine;
    change(engine);
    kvist_client* client = nullptr;
    const kvist_status status = kvist_connect(&engine.options, &client);
    if (status == KVIST_OK) kvist_disconnect(client);
    return std::string(kvist_status_name(status)) + ": " + kvist_error();
  };
  using Catch::Contains;
  CHECK_THAT(refusal([](Engine& e) { e.options.instance = nullptr; }), Contains("INVALID_ARGUMENT: instance is missing"));
  CHECK_THAT(refusal([](Engine& e) { e.options.struct_size = 8; }), Contains("kvist_options.struct_size is 8"));
  CHECK_THAT(refusal([](Engine& e) { e.space.model = nullptr; }), Contains("space.model is missing"));
  CHECK_THAT(refusal([](Engine& e) { e.space.chunk_tokens = 17; }), Contains("not a multiple of space.page_tokens"));
  CHECK_THAT(refusal([](Engine& e) { e.space.segments = 2; }), Contains("give 1 segments"));
  CHECK_THAT(refusal([](Engine& e) { e.options.memory = nullptr; }), Contains("memory is missing"));
  CHECK_THAT(refusal([](Engine& e) { e.memory.write_page = nullptr; }), Contains("write_page is missing"));
  CHECK_THAT(refusal([](Engine& e) { e.memory.layer_count = 3; }), Contains("memory.layer_count is 3"));
  CHECK_THAT(refusal([](Engine& e) { e.layer.region = 4; }), Contains("region 4 of 1"));
  CHECK_THAT(refusal([](Engine& e) {
               e.memfds = {e.fd, e.fd};
               e.memory.memfds = e.memfds.data();
               e.memory.memfd_count = 2;
             }),
             Contains("INVALID_ARGUMENT: memory.memfds[1] is one too many"));
  const kvist_dim heads{1025, 8};  // one more than kvistd serves
  CHECK_THAT(refusal([&](Engine& e) {
               e.memory.dims = &heads;
               e.memory.dim_count = 1;
             }),
             Contains("multiply to more than 1024"));
  std::vector<kvist_layer> many(8000, {0, uint64_t{1} << 40});  // more than a Hello has room for
  CHECK_THAT(refusal([&](Engine& e) {
               std::vector<kvist_group> groups(20, e.OneGroup());
               for (kvist_group& group : groups) group.layers = 400;
               e.UseGroups(std::move(groups));
               e.memory.layers = many.data();
               e.memory.layer_count = many.size();
             }),
             Contains("INVALID_ARGUMENT: the description of the KV memory takes") && Contains("8000 layers"));
  CHECK_THAT(refusal([](Engine& e) { e.options.space = nullptr; }), Contains("kvist_space is missing"));
  // A later version's groups have more at their ends: zero is served, anything else isn't known here.
  struct LaterGroup {
    kvist_group group;
    uint64_t more;
  };
  std::vector<LaterGroup> later(2);
  const auto use = [&](Engine& e) {
    for (LaterGroup& of : later) {
      of.group = e.OneGroup();
      of.group.struct_size = sizeof of;
    }
    e.space.groups = &later[0].group;
    e.space.group_count = 2;
    e.space.layers = e.space.segments = 0;
    e.space.segment_bytes = 0;
  };
  CHECK_THAT(refusal(use), Contains("the space has 2 layers"));  // both were read; the memory has one
  CHECK_THAT(refusal([&](Engine& e) {
               use(e);
               later[1].group.struct_size = sizeof(kvist_group);
             }),
             Contains("space.groups[1].struct_size is 40"));
  later[1].more = 5;
  CHECK_THAT(refusal(use), Contains("kvist_group has a field at byte 40"));
  CHECK_THAT(refusal([](Engine& e) { e.memory.pages = 9; }), Contains("write_page"));
  CHECK_THAT(refusal([](Engine& e) { e.write_wrongly = true; }),
             Contains("FAILED_PRECONDITION: the KV memory isn't where it was described"));
}

TEST_CASE("kvist_connect refuses sizes that nothing could hold, also while there is no kvistd to refuse them") {
  int pages_written = 0;
  const auto refusal = [&](auto change) {
    Engine engine;
    change(engine);
    kvist_client* client = nullptr;
    const kvist_status status = kvist_connect(&engine.options, &client);
    if (status == KVIST_OK) kvist_disconnect(client);
    pages_written += engine.pages_written;
    return std::string(kvist_status_name(status)) + ": " + kvist_error();
  };
  using Catch::Contains;
  for (const uint64_t bytes : {(uint64_t{1} << 30) + 1, uint64_t{1} << 40, uint64_t{1} << 62, UINT64_MAX}) {
    CHECK_THAT(refusal([&](Engine& e) { e.space.segment_bytes = bytes; }),
               Contains("INVALID_ARGUMENT: space.segment_bytes is ") && Contains("allowed are 1 to 1073741824"));
  }
  for (const uint32_t many : {449u, UINT32_MAX}) {
    CHECK_THAT(refusal([&](Engine& e) { e.space.layers = many; }), Contains("space.layers is ") && Contains("1 to 448"));
  }
  for (const uint32_t many : {65537u, UINT32_MAX}) {
    CHECK_THAT(refusal([&](Engine& e) { e.space.page_tokens = many; }), Contains("space.page_tokens is "));
    CHECK_THAT(refusal([&](Engine& e) { e.space.chunk_tokens = many; }), Contains("space.chunk_tokens is "));
  }
  CHECK_THAT(refusal([](Engine& e) { e.space.segments = UINT32_MAX; }), Contains("space.segments is "));
  CHECK_THAT(refusal([](Engine& e) {
               e.space.segments = 2;
               e.space.segment_bytes = uint64_t{1} << 30;
             }),
             Contains("space.segments * segment_bytes is 2147483648"));
  CHECK_THAT(refusal([](Engine& e) {
               e.space.segment_bytes = uint64_t{1} << 30;
               e.space.layers = 448;
             }),
             Contains("by the pages of a chunk"));
  CHECK_THAT(refusal([](Engine& e) {  // the sum of 32 bits would be that of the memory
               std::vector<kvist_group> groups(2, e.OneGroup());
               groups[0].layers = UINT32_MAX;
               groups[1].layers = 2;
               e.UseGroups(std::move(groups));
             }),
             Contains("space.groups[0].layers is 4294967295"));
  CHECK_THAT(refusal([](Engine& e) {
               std::vector<kvist_group> groups(1, e.OneGroup());
               groups[0].kind = KVIST_WINDOW;
               groups[0].window_tokens = UINT32_MAX;
               e.UseGroups(std::move(groups));
             }),
             Contains("space.groups[0].window_tokens is 4294967295"));
  CHECK(pages_written == 0);
}

TEST_CASE("kvist_chain gives one key per full chunk, the same for the same prefix") {
  kvist::Chain a(4), b(4), salted(4, "salt");
  const std::vector<uint32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9};
  a.Append(tokens);
  for (const uint32_t token : tokens) b.Append({&token, 1});
  salted.Append(tokens);
  REQUIRE(a.keys().size() == 2);
  REQUIRE(b.keys().size() == 2);
  CHECK(std::memcmp(a.keys().data(), b.keys().data(), 64) == 0);
  CHECK(std::memcmp(a.keys().data(), salted.keys().data(), 32) != 0);
}
