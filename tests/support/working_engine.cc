#include "tests/support/working_engine.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <random>
#include <span>

namespace kvist::test {
namespace {

constexpr uint32_t kChunks = 16, kAreas = 16;  // together all pages of a large engine
constexpr int kWaitsMost = 100;                // 20 s

}  // namespace

WorkingEngine::WorkingEngine(const std::string& socket, const std::string& instance)
    : engine_(FakeEngine::LargeOn(socket, instance)) {
  if (engine_.status.ok()) thread_ = std::thread([this] { Work(); });
}

void WorkingEngine::Finish() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

template <class Call>
auto WorkingEngine::Measured(Call call) {
  const auto begin = std::chrono::steady_clock::now();
  auto result = call();
  const int64_t took =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin).count();
  longest_us_ = std::max(longest_us_.load(), took);
  return result;
}

void WorkingEngine::Work() {
  std::mt19937 random(26);
  kvist::Client& worker = engine_.worker(0);
  std::vector<Area> areas(kAreas);
  while (!stop_) {
    size_t aside = 0;
    for (Area& area : areas) {
      if (area.load != 0 && Measured([&] { return worker.Poll(area.load); }).pages_released != 0) area.load = 0;
      aside += area.load != 0;
    }
    put_aside_ = aside;
    const auto free = std::find_if(areas.begin(), areas.end(), [](const Area& area) { return area.load == 0; });
    if (free == areas.end()) std::abort();  // one load at most is under way when kvistd stops
    Prompt(engine_.Keys(1000 * (random() % 20), kChunks), static_cast<uint32_t>(free - areas.begin()), &*free);
  }
  // Pages may be freed only when nothing touches them any more.
  for (const Area& area : areas) {
    bool held = area.load != 0;
    for (int i = 0; held && i < kWaitsMost; ++i) held = worker.Wait(area.load, kDeadlineMicros).pages_released == 0;
    never_ended_ += held;
  }
}

void WorkingEngine::Prompt(const std::vector<kvist_key>& keys, uint32_t number, Area* area) {
  kvist::Client& worker = engine_.worker(0);
  const std::vector<uint32_t> pages = engine_.Pages(number * kChunks, kChunks);
  const auto of_chunk = [&](uint32_t chunk) {
    return std::span(pages).subspan(size_t{chunk} * FakeEngine::kPagesPerChunk, FakeEngine::kPagesPerChunk);
  };
  const kvist::Hit hit = Measured([&] { return engine_.scheduler().Lookup(keys, 10 * kDeadlineMicros, kDeadlineMicros); });
  if (hit.lease && hit.chunks == kChunks) {
    engine_.Poison(0, pages);
    kvist_load_args args{};
    args.struct_size = sizeof args;
    args.lease = hit.lease.id();
    args.chunk_count = kChunks;
    args.pages = pages.data();
    args.page_count = pages.size();
    args.deadline_us = kDeadlineMicros;
    kvist_op load = 0;
    Measured([&] { return kvist_load(worker.get(), &args, &load); });
    if (load != 0) {
      const kvist_result result = Measured([&] { return worker.Wait(load, kDeadlineMicros); });
      if (result.status == KVIST_OK) {
        ++hits_;
        for (uint32_t c = 0; c < kChunks; ++c) wrong_ += !engine_.Check(0, keys[c], of_chunk(c)).empty();
      }
      if (result.pages_released == 0) {  // computed elsewhere
        area->load = load;
        ++computed_;
        return;
      }
    }
  }
  for (uint32_t c = 0; c < kChunks; ++c) engine_.Fill(0, keys[c], of_chunk(c));
  ++computed_;
  kvist_store_args args{};
  args.struct_size = sizeof args;
  args.keys = keys.data();
  args.key_count = keys.size();
  args.pages = pages.data();
  args.page_count = pages.size();
  args.deadline_us = kDeadlineMicros;
  kvist_op store = 0;
  Measured([&] { return kvist_store(worker.get(), &args, &store); });
  if (store == 0) return;
  if (Measured([&] { return worker.Wait(store, kDeadlineMicros); }).status != KVIST_PENDING) return;
  Measured([&] { return worker.Cancel(store).code; });
  never_ended_ += worker.Poll(store).pages_released == 0;
}

double UntilItGoesOn(const std::function<uint64_t()>& counter, std::chrono::seconds within) {
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t from = counter();
  while (counter() < from + 3) {
    if (std::chrono::steady_clock::now() - begin > within) return -1;
    std::this_thread::yield();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace kvist::test
