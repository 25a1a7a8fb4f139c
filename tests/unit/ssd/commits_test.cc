#include "storage/ssd/commits.h"

#include <catch2/catch.hpp>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/sim_catalog.h"

namespace kvist::ssd {
namespace {

CatalogBatch Pin(const std::string& name, const std::string& words) {
  CatalogBatch batch;
  batch.Put(PinRow{.space = 0, .name = name, .description = words});
  return batch;
}
CatalogBatch NoPin(const std::string& name) {
  CatalogBatch batch;
  batch.ErasePin(0, name);
  return batch;
}

struct CommitsWorld {
  kvist::test::SimCatalog catalog;
  std::deque<std::function<void()>> posted;
  int asked_to_retry = 0, has_space = 0, broken = 0;
  Commits commits{&catalog, [this](std::function<void()> task) { posted.push_back(std::move(task)); },
                  [this] {
                    ++(!commits.broken().ok() ? broken : commits.full().ok() ? has_space : asked_to_retry);
                  }};
  std::vector<std::string> said;

  void Add(CatalogBatch batch, Commits::Need need, const std::string& name) {
    commits.Add(std::move(batch), need, [this, name](const absl::Status& status) {
      said.push_back(name + (status.ok() ? "" : absl::IsResourceExhausted(status) ? " full" : " failed"));
    });
  }
  // All that can happen without Retry does.
  void Run() {
    for (int i = 0; i < 1000 && (catalog.Step() || !posted.empty()); ++i) {
      while (!posted.empty()) {
        const std::function<void()> task = std::move(posted.front());
        posted.pop_front();
        task();
      }
    }
  }
  bool HasPin(const std::string& name) const { return catalog.durable().contains(PinKey(0, name)); }
};

TEST_CASE("Commits go in their order, those that wait together") {
  CommitsWorld world;
  for (int i = 0; i < 5; ++i) world.Add(Pin(std::to_string(i), "x"), Commits::Need::kTry, std::to_string(i));
  CHECK_FALSE(world.commits.idle());
  world.Run();
  CHECK(world.said == std::vector<std::string>{"0", "1", "2", "3", "4"});
  CHECK(world.commits.idle());
  CHECK(world.catalog.commits() == 2);  // the first, and those that came meanwhile
}

TEST_CASE("Commits that must come are tried again, and nothing later overtakes them") {
  CommitsWorld world;
  world.Add(Pin("a", "old"), Commits::Need::kTry, "put");
  world.Run();
  world.catalog.Fail(absl::ResourceExhaustedError("full"), false);
  world.Add(NoPin("a"), Commits::Need::kMust, "erase");
  world.Add(Pin("b", "x"), Commits::Need::kTry, "try");
  world.Add(Pin("a", "new"), Commits::Need::kMust, "put again");
  world.Run();
  CHECK(world.asked_to_retry == 1);
  CHECK(world.said == std::vector<std::string>{"put", "try full"});
  world.Add(Pin("c", "x"), Commits::Need::kTry, "later");  // it isn't waited for
  CHECK(world.said.back() == "later full");
  CHECK(world.HasPin("a"));
  world.commits.Retry();
  world.Run();
  CHECK(world.asked_to_retry == 2);  // still full
  world.catalog.Fail(absl::OkStatus(), false);
  world.commits.Retry();
  world.Run();
  CHECK(world.said == std::vector<std::string>{"put", "try full", "later full", "erase", "put again"});
  CHECK(world.HasPin("a"));
  CHECK_FALSE(world.HasPin("b"));
  CHECK(world.commits.idle());
}

TEST_CASE("Commits find out by themselves that there is space again, though nothing waits") {
  CommitsWorld world;
  world.catalog.Fail(absl::ResourceExhaustedError("full"), false);
  world.Add(Pin("a", "x"), Commits::Need::kTry, "try");
  world.Run();
  CHECK(world.asked_to_retry == 1);
  CHECK(world.commits.full().message() == "full");
  world.commits.Retry();
  world.Run();
  CHECK(world.asked_to_retry == 2);
  CHECK(world.has_space == 0);
  world.catalog.Fail(absl::OkStatus(), false);
  world.commits.Retry();
  world.Run();
  CHECK(world.asked_to_retry == 2);
  CHECK(world.has_space == 1);
  CHECK(world.commits.full().ok());
  world.Add(Pin("a", "x"), Commits::Need::kTry, "again");
  world.Run();
  CHECK(world.said == std::vector<std::string>{"try full", "again"});
}

TEST_CASE("Commits all fail when the catalog takes nothing any more, and say why") {
  CommitsWorld world;
  world.catalog.Fail(absl::UnavailableError("the disk fails"), false);
  world.Add(Pin("a", "x"), Commits::Need::kMust, "first");
  world.Add(Pin("b", "x"), Commits::Need::kTry, "second");
  world.Run();
  world.Add(Pin("c", "x"), Commits::Need::kMust, "third");
  CHECK(world.said == std::vector<std::string>{"first failed", "second failed", "third failed"});
  CHECK(absl::IsUnavailable(world.commits.broken()));
  CHECK(world.broken == 1);
  CHECK(world.asked_to_retry == 0);
}

TEST_CASE("Commits that are closed try nothing again") {
  CommitsWorld world;
  world.catalog.Fail(absl::ResourceExhaustedError("full"), false);
  world.Add(Pin("a", "x"), Commits::Need::kMust, "must");
  world.Run();
  CHECK(world.said.empty());
  world.commits.Close();
  world.Run();
  CHECK(world.said == std::vector<std::string>{"must full"});
  CHECK(world.commits.idle());
  world.commits.Retry();  // that was asked for before
  CHECK(world.commits.idle());
}

}  // namespace
}  // namespace kvist::ssd
