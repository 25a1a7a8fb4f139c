// The S3 tier with a server of the test's own that refuses wrong signatures, and fails as it is told to; with moto's: tests/unit/remote/moto.sh.
#include "storage/remote/s3_store.h"

#include <dlfcn.h>
#include <httplib.h>
#include <netdb.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/unit/remote/asked.h"

namespace {

// Names that end with ".hangs" are looked up for as long as the test says.
std::atomic<bool> names_hang = false;
std::atomic<int> names_hanging = 0;
std::atomic<int> names_asked = 0;

}  // namespace

// Instead of the C library's, for libcurl, too.
extern "C" __attribute__((visibility("default"))) int getaddrinfo(const char* node, const char* service,
                                                                  const addrinfo* hints, addrinfo** found) {
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto kReal = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (node == nullptr || !absl::EndsWith(node, ".hangs")) return kReal(node, service, hints, found);
  ++names_asked;
  ++names_hanging;
  while (names_hang) absl::SleepFor(absl::Milliseconds(1));
  --names_hanging;
  return EAI_AGAIN;
}

namespace kvist::remote {
namespace {

const S3Scope kScope{};

// Objects in memory, and uploads in parts. Each request's signature is computed anew from what came.
class FakeS3 {
 public:
  FakeS3() {
    server_.set_keep_alive_max_count(1000);
    const auto serve = [this](const httplib::Request& request, httplib::Response& response) { Serve(request, &response); };
    server_.Get("/.*", serve);
    server_.Put("/.*", serve);
    server_.Post("/.*", serve);
    server_.Delete("/.*", serve);
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();  // before that it can't be stopped
  }
  ~FakeS3() {
    hang = false;
    hangs = "";
    server_.stop();
    thread_.join();
  }
  S3Options Options() const {
    S3Options options;
    options.endpoint = absl::StrCat("http://127.0.0.1:", port_);
    options.bucket = "bucket";
    options.path_style = true;
    options.credentials = credentials_;
    options.part = MiB(5);
    options.pause_min = absl::Milliseconds(1);
    return options;
  }
  std::map<std::string, std::string> objects() {
    const std::lock_guard lock(mutex_);
    return objects_;
  }
  void Change(const std::string& path, const std::string& to) {
    const std::lock_guard lock(mutex_);
    objects_[path] = to;
  }
  size_t uploads() {
    const std::lock_guard lock(mutex_);
    return uploads_.size();
  }

  std::atomic<int> fail = 0;  // so many requests end with fail_with
  std::atomic<int> fail_with = 503;
  std::atomic<bool> hang = false;
  std::atomic<const char*> hangs = "";  // the method of which nothing is answered
  std::atomic<int> hanging = 0;
  std::atomic<int> requests = 0;
  std::atomic<bool> fail_complete = false;

 private:
  bool Signed(const httplib::Request& request) const {
    S3Request again{request.method, request.get_header_value("Host"), request.path, {}, {}, Sha256Hex(request.body)};
    for (const auto& [name, value] : request.params) again.query.emplace_back(name, value);
    const std::string said = request.get_header_value("Authorization");
    const std::string names =
        said.substr(said.find("SignedHeaders=") + 14, said.find(",Signature") - said.find("SignedHeaders=") - 14);
    for (const auto name : absl::StrSplit(names, ';'))
      if (name != "host") again.headers[std::string(name)] = request.get_header_value(std::string(name).c_str());
    Sign(credentials_, kScope, request.get_header_value("x-amz-date"), &again);
    return again.headers["authorization"] == said;
  }
  void Serve(const httplib::Request& request, httplib::Response* response) {
    ++requests;
    ++hanging;
    while (hang || request.method == hangs.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --hanging;
    if (fail > 0) {
      --fail;
      response->status = fail_with;
      response->set_content(
          "<Error><Code>AsTold</Code><Message>by the test</Message><StringToSign>token</StringToSign></Error>",
          "application/xml");
      return;
    }
    if (!Signed(request)) {
      response->status = 403;
      return;
    }
    const std::lock_guard lock(mutex_);
    const std::string upload = request.get_param_value("uploadId");
    if (request.method == "PUT" && !upload.empty()) {
      uploads_[upload][std::atoi(request.get_param_value("partNumber").c_str())] = request.body;
      response->set_header("ETag", "\"" + Sha256Hex(request.body) + "\"");
    } else if (request.method == "PUT") {
      objects_[request.path] = request.body;
    } else if (request.method == "POST" && request.has_param("uploads")) {
      const std::string id = absl::StrCat("up&load/", ++next_upload_);
      uploads_[id];
      response->set_content("<X><UploadId>" + id + "</UploadId></X>", "application/xml");
    } else if (request.method == "POST" && fail_complete) {
      response->set_content("<Error><Code>InternalError</Code></Error>", "application/xml");
    } else if (request.method == "POST") {
      std::string whole;
      for (const auto& [number, part] : uploads_[upload]) {
        if (!absl::StrContains(request.body,
                               absl::StrCat("<PartNumber>", number, "</PartNumber><ETag>\"", Sha256Hex(part), "\""))) {
          response->status = 400;
          return;
        }
        whole += part;
      }
      objects_[request.path] = whole;
      uploads_.erase(upload);
      response->set_content("<CompleteMultipartUploadResult/>", "application/xml");
    } else if (request.method == "DELETE") {
      if (upload.empty()) objects_.erase(request.path);
      uploads_.erase(upload);
      response->status = 204;
    } else if (const auto at = objects_.find(request.path); at == objects_.end()) {
      response->status = 404;
    } else {
      response->set_content(at->second, "application/octet-stream");
    }
  }

  const S3Credentials credentials_{"access", "secret/+", "token"};
  std::mutex mutex_;
  std::map<std::string, std::string> objects_;
  std::map<std::string, std::map<int, std::string>> uploads_;
  int next_upload_ = 0;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

TEST_CASE("S3Store gives back what was put, by ranges and in parts") {
  FakeS3 server;
  const auto store = *S3Store::Create(server.Options());
  const auto head = Pattern(8, 9);
  for (const size_t size : {size_t{1}, size_t{100'000}, size_t{12 << 20}, size_t{(10 << 20) - 8}}) {
    INFO(size);
    const auto body = Pattern(size, size);
    CHECK(Ask(store.get(), Kind::kPut, {PutOf("object", head, body)})[0].status.message() == "");
    CHECK(server.objects().size() == 1);
    CHECK(server.objects().begin()->first == "/bucket/kvist/object");
    std::vector<std::byte> read_head(8);
    std::vector<std::byte> read(size);
    const Outcome outcome = Ask(store.get(), Kind::kGet, {GetOf("object", read_head, read)})[0];
    REQUIRE(outcome.status.ok());
    REQUIRE(outcome.found == Found::kYes);
    CHECK((outcome.head.value == 8 && outcome.body.value == size));
    CHECK((read_head == head && read == body));
    read.resize(size - 1);
    CHECK(Ask(store.get(), Kind::kGet, {GetOf("object", read_head, read)})[0].found == Found::kTooLong);
    CHECK(Ask(store.get(), Kind::kExists, {Named("object"), Named("other")})[0].found == Found::kYes);
    CHECK(Ask(store.get(), Kind::kExists, {Named("object"), Named("other")})[1].found == Found::kNo);
    CHECK(Ask(store.get(), Kind::kRemove, {Named("object"), Named("other")})[0].status.ok());
    CHECK(Ask(store.get(), Kind::kGet, {GetOf("object", read_head, read)})[0].found == Found::kNo);
  }
  CHECK(server.uploads() == 0);
  CHECK(store->load().bytes == 0);
}

TEST_CASE("S3Store tries again what fails for a moment, and so often only") {
  FakeS3 server;
  const auto store = *S3Store::Create(server.Options());
  const auto body = Pattern(1000, 1);
  const auto put = [&] { return Ask(store.get(), Kind::kPut, {PutOf("object", {}, body)})[0].status; };
  server.fail = 2;
  CHECK(put().ok());
  CHECK(server.requests == 3);
  server.fail = 1000;
  server.requests = 0;
  CHECK(absl::IsUnavailable(put()));
  CHECK(server.requests == 3);
  server.fail_with = 403;
  server.requests = 0;
  const absl::Status denied = put();
  CHECK(absl::IsPermissionDenied(denied));
  CHECK(absl::StrContains(denied.message(), "AsTold by the test"));
  CHECK(!absl::StrContains(denied.message(), "token"));
  CHECK(server.requests == 1);
  const Outcome missed = Ask(store.get(), Kind::kExists, {Named("object")})[0];
  CHECK(absl::StrContains(missed.status.message(), "s3:ListBucket"));
  server.fail_with = 301;
  CHECK(absl::IsFailedPrecondition(put()));
  server.fail = 0;
  CHECK(put().ok());
}

TEST_CASE("S3Store is refused with another secret") {
  FakeS3 server;
  S3Options options = server.Options();
  options.credentials.secret_key = "wrong";
  const auto store = *S3Store::Create(options);
  const auto body = Pattern(1000, 1);
  CHECK(absl::IsPermissionDenied(Ask(store.get(), Kind::kPut, {PutOf("object", {}, body)})[0].status));
  CHECK(server.objects().empty());
}

TEST_CASE("S3Store leaves no half of an upload, nor its parts") {
  FakeS3 server;
  const auto store = *S3Store::Create(server.Options());
  const auto body = Pattern(12 << 20, 1);
  server.fail_complete = true;
  CHECK(absl::IsUnavailable(Ask(store.get(), Kind::kPut, {PutOf("object", {}, body)})[0].status));
  CHECK(server.objects().empty());
  const absl::Time until = In(absl::Seconds(10));
  while (server.uploads() > 0) {
    REQUIRE(MonotonicNow() < until);
    absl::SleepFor(absl::Milliseconds(1));
  }
}

TEST_CASE("S3Store is closed while it has the parts of an upload removed") {
  FakeS3 server;
  auto store = *S3Store::Create(server.Options());
  const auto body = Pattern(12 << 20, 1);
  server.fail_complete = true;
  server.hangs = "DELETE";
  CHECK(absl::IsUnavailable(Ask(store.get(), Kind::kPut, {PutOf("object", {}, body)})[0].status));
  const absl::Time until = In(absl::Seconds(10));
  while (server.hanging == 0) {
    REQUIRE(MonotonicNow() < until);
    absl::SleepFor(absl::Milliseconds(1));
  }
  const absl::Time start = MonotonicNow();
  store = nullptr;
  CHECK(MonotonicNow() - start < absl::Seconds(2));
}

TEST_CASE("S3Store keeps deadlines when the server hangs, touches nothing after them, and ends") {
  FakeS3 server;
  auto store = *S3Store::Create(server.Options());
  auto body = Pattern(100'000, 1);
  const auto whole = body;
  REQUIRE(Ask(store.get(), Kind::kPut, {PutOf("object", {}, body)})[0].status.ok());
  server.hang = true;
  std::vector<std::byte> room(body.size());
  for (const Kind kind : {Kind::kGet, Kind::kPut, Kind::kExists, Kind::kRemove}) {
    Operation operation = Named("other");
    if (kind == Kind::kGet) operation = GetOf("object", {}, room);
    if (kind == Kind::kPut) operation = PutOf("other", {}, body);
    const absl::Time start = MonotonicNow();
    CHECK(absl::IsDeadlineExceeded(Ask(store.get(), kind, {operation}, absl::Milliseconds(50))[0].status));
    CHECK(MonotonicNow() - start < absl::Seconds(2));
  }
  CHECK(store->load().bytes == 0);
  // What the server says and takes now is nobody's.
  std::fill(room.begin(), room.end(), std::byte{7});
  std::fill(body.begin(), body.end(), std::byte{8});
  server.hang = false;
  std::vector<std::byte> read(whole.size());
  REQUIRE(Ask(store.get(), Kind::kGet, {GetOf("object", {}, read)})[0].found == Found::kYes);
  CHECK(read == whole);
  CHECK(room == std::vector<std::byte>(room.size(), std::byte{7}));
  const auto objects = server.objects();
  const std::string_view text(reinterpret_cast<const char*>(whole.data()), whole.size());
  if (const auto other = objects.find("/bucket/kvist/other"); other != objects.end()) CHECK(other->second == text);
  server.hang = true;
  Answer<Outcome> cancelled;
  REQUIRE(store->Submit({Kind::kGet, {GetOf("object", {}, room)}, In(absl::Seconds(60))}, cancelled.Done()).ok());
  const absl::Time start = MonotonicNow();
  store = nullptr;
  CHECK(MonotonicNow() - start < absl::Seconds(2));
  CHECK(absl::IsCancelled(cancelled.Wait()[0].status));
  CHECK(room == std::vector<std::byte>(room.size(), std::byte{7}));
}

TEST_CASE("S3Store answers questions while all connections for bytes are at work") {
  FakeS3 server;
  S3Options options = server.Options();
  options.connections = 2;
  const auto store = *S3Store::Create(options);
  server.hangs = "GET";
  std::vector<std::vector<std::byte>> rooms(4, std::vector<std::byte>(100'000));
  std::vector<Answer<Outcome>> gets(rooms.size());
  for (size_t i = 0; i < rooms.size(); ++i)
    REQUIRE(store->Submit({Kind::kGet, {GetOf("object", {}, rooms[i])}, In(absl::Seconds(20))}, gets[i].Done()).ok());
  CHECK(Ask(store.get(), Kind::kExists, std::vector<Operation>(40, Named("a")), absl::Seconds(10))[39].status.ok());
  for (const Answer<Outcome>& get : gets) CHECK(!get.there());
  server.hangs = "";
  for (const Answer<Outcome>& get : gets) CHECK(get.Wait()[0].status.ok());
}

TEST_CASE("S3Store refuses what is submitted while it is destroyed") {
  FakeS3 server;
  server.hang = true;
  DestroyWhileSubmitting(*S3Store::Create(server.Options()), Named("a"), 20);
}

TEST_CASE("S3Store tries again when its server's name has no address") {
  S3Options options;
  options.endpoint = "http://s3.hangs:80";  // they don't
  options.bucket = "bucket";
  options.path_style = true;
  options.credentials = {"a", "b", ""};
  options.pause_min = absl::Milliseconds(1);
  const auto store = *S3Store::Create(options);
  const int before = names_asked;
  CHECK(absl::IsUnavailable(Ask(store.get(), Kind::kExists, {Named("object")})[0].status));
  CHECK(names_asked == before + static_cast<int>(options.attempts));
}

TEST_CASE("S3Store keeps deadlines when its server's name isn't answered, and ends") {
  S3Options options;
  options.endpoint = "http://s3.hangs:80";
  options.bucket = "bucket";
  options.path_style = true;
  options.credentials = {"a", "b", ""};
  options.connect_timeout = absl::Seconds(20);
  auto store = *S3Store::Create(options);
  names_hang = true;
  const absl::Time start = MonotonicNow();
  Answer<Outcome> late;
  REQUIRE(store->Submit({Kind::kExists, {Named("object")}, In(absl::Seconds(2))}, late.Done()).ok());
  const absl::Time until = In(absl::Seconds(20));
  while (names_hanging == 0 && MonotonicNow() < until) absl::SleepFor(absl::Milliseconds(1));
  const bool in_time = late.Has(absl::Seconds(10));
  Answer<Outcome> cancelled;
  CHECK(store->Submit({Kind::kExists, {Named("object")}, In(absl::Seconds(60))}, cancelled.Done()).ok());
  while (in_time && names_hanging < 2 && MonotonicNow() < until) absl::SleepFor(absl::Milliseconds(1));
  if (!in_time) names_hang = false;
  store = nullptr;
  CHECK(MonotonicNow() - start < absl::Seconds(15));  // connect_timeout is 20
  CHECK(in_time);
  CHECK(absl::IsDeadlineExceeded(late.Wait()[0].status));
  CHECK(absl::IsCancelled(cancelled.Wait()[0].status));
  names_hang = false;
  while (names_hanging > 0) absl::SleepFor(absl::Milliseconds(1));
}

TEST_CASE("S3Store says at once that a server refuses, and refuses options that make no sense") {
  S3Options options;
  options.endpoint = "http://127.0.0.1:1";
  options.bucket = "bucket";
  options.path_style = true;
  options.credentials = {"a", "b", ""};
  options.pause_min = absl::Milliseconds(1);
  const auto store = *S3Store::Create(options);
  CHECK(absl::IsUnavailable(Ask(store.get(), Kind::kExists, {Named("object")})[0].status));
  for (const std::string endpoint : {"", "ftp://a", "http://", "http://a/b", "host:1"}) {
    S3Options wrong = options;
    wrong.endpoint = endpoint;
    CHECK(absl::IsInvalidArgument(S3Store::Create(wrong).status()));
  }
  S3Options wrong = options;
  wrong.bucket = "A/b";
  CHECK(absl::IsInvalidArgument(S3Store::Create(wrong).status()));
  for (const absl::Duration timeout :
       {absl::ZeroDuration(), -absl::Seconds(1), absl::Microseconds(1), absl::InfiniteDuration()}) {
    wrong = options;
    wrong.connect_timeout = timeout;
    CHECK(absl::IsInvalidArgument(S3Store::Create(wrong).status()));
  }
  wrong = options;
  wrong.credentials = {};
  CHECK(absl::IsInvalidArgument(S3Store::Create(wrong).status()));
}

// With a server of which the environment says where it is; tests/unit/remote/moto.sh starts one.
TEST_CASE("S3Store works with a real server", "[.moto]") {
  const char* const endpoint = std::getenv("KVIST_S3_ENDPOINT");
  REQUIRE(endpoint != nullptr);
  S3Options options;
  options.endpoint = endpoint;
  options.bucket = "kvist-test";
  options.path_style = true;
  options.credentials = {"access", "secret", ""};
  options.part = MiB(5);
  const auto store = *S3Store::Create(options);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100'000}, size_t{12 << 20}, size_t{10 << 20}}) {
    const auto body = Pattern(size, size);
    INFO(size);
    CHECK(Ask(store.get(), Kind::kPut, {PutOf("object", {}, body)})[0].status.message() == "");
    for (const size_t more : {size_t{0}, size_t{10}, size_t{11 << 20}}) {
      std::vector<std::byte> read(size + more);
      const Outcome outcome = Ask(store.get(), Kind::kGet, {GetOf("object", {}, read)})[0];
      CHECK(outcome.status.message() == "");
      REQUIRE(outcome.found == Found::kYes);
      CHECK(outcome.body.value == size);
      read.resize(size);
      CHECK(read == body);
    }
    if (size > 0) {
      std::vector<std::byte> small(size - 1);
      CHECK(Ask(store.get(), Kind::kGet, {GetOf("object", {}, small)})[0].found == Found::kTooLong);
    }
    CHECK(Ask(store.get(), Kind::kExists, {Named("object")})[0].found == Found::kYes);
    CHECK(Ask(store.get(), Kind::kRemove, {Named("object")})[0].status.ok());
    CHECK(Ask(store.get(), Kind::kExists, {Named("object")})[0].found == Found::kNo);
    std::vector<std::byte> read(10);
    CHECK(Ask(store.get(), Kind::kGet, {GetOf("object", {}, read)})[0].found == Found::kNo);
  }
}

}  // namespace
}  // namespace kvist::remote
