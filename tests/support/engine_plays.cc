#include "tests/support/engine_plays.h"

#include <span>
#include <thread>

namespace kvist::test {
namespace {

constexpr int64_t kTimeout = Player::kTimeoutMicros;

void LookUp(Player& p) { p.engine.scheduler().Lookup(p.Prompt(), 0, kTimeout); }
void LoadAny(Player& p) { p.Load(p.Prompt()); }
void Store(Player& p) { p.engine.StoreAll(p.Prompt(), 0, kTimeout, p.pages_from); }
void LeaseAndRelease(Player& p) {
  kvist::Hit hit = p.engine.scheduler().Lookup(p.Prompt(), kTimeout, kTimeout);
  std::this_thread::yield();
  hit.lease.Release();
}

void Pin(Player& p) { p.engine.scheduler().Pin(p.Prompt(), kTimeout); }
void Unpin(Player& p) { p.engine.scheduler().Unpin(p.Prompt(), kTimeout); }
void Hint(Player& p) { p.engine.scheduler().SessionEnded(p.Prompt()); }
void SwapOutAndIn(Player& p) {
  const std::vector<uint32_t> pages = p.engine.Pages(p.pages_from, 2);
  const std::vector<kvist_key> keys = p.engine.Keys(p.Number(), 2);
  kvist::Client& worker = p.engine.worker(0);
  const kvist::Allocation room = worker.Allocate(2, 0, kTimeout);
  if (!room) return;  // others have it
  const auto of_chunk = [&](size_t c) {
    return std::span(pages).subspan(c * FakeEngine::kPagesPerChunk, FakeEngine::kPagesPerChunk);
  };
  for (size_t c = 0; c < 2; ++c) p.engine.Fill(0, keys[c], of_chunk(c));
  if (worker.Wait(worker.SwapOut(room, 0, 2, pages), kTimeout).status != KVIST_OK) return;
  p.engine.Poison(0, pages);
  if (worker.Wait(worker.SwapIn(room, 0, 2, pages), kTimeout).status != KVIST_OK) return;
  for (size_t c = 0; c < 2; ++c) p.wrong += !p.engine.Check(0, keys[c], of_chunk(c)).empty();
}

}  // namespace

void Player::Load(const std::vector<kvist_key>& keys) {
  std::string what;
  hits += engine.LoadAll(keys, &what, kTimeout, pages_from);
  wrong += !what.empty();
  if (first_wrong.empty()) first_wrong = what;
}

const std::array<Play, 8> kPlays{
    Play{"lookups", LookUp}, Play{"loads", LoadAny}, Play{"stores", Store}, Play{"releases", LeaseAndRelease},
    Play{"pins", Pin},       Play{"unpins", Unpin},  Play{"hints", Hint},   Play{"swaps", SwapOutAndIn}};

}  // namespace kvist::test
