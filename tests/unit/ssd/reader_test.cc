#include "storage/ssd/reader.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <set>

#include "tests/unit/ssd/simulated.h"

namespace kvist::ssd {
namespace {

bool SamePayload(const Simulated::Stored& of, const std::byte* slot) {
  return std::memcmp(of.slot.data() + kHeaderBytes.value, slot + kHeaderBytes.value, of.header.payload_bytes) == 0;
}

TEST_CASE("Reader gives back what was written, in both orders, runs in order") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Simulated world(seed);
    for (int i = 0; i < 30; ++i) REQUIRE(world.WriteSome());
    REQUIRE(world.Settle());
    for (const auto order : {Reader::Order::kWhole, Reader::Order::kByLayer}) {
      std::vector<AlignedBytes> slots;
      std::vector<Reader::Shard> wanted;
      for (const auto& [n, of] : world.stored) {
        slots.emplace_back(of.slot.size());
        std::memset(slots.back().data(), 0x77, slots.back().size().value);
        wanted.push_back(world.Wanted(n, slots.back().data()));
      }
      world.drive->reader().Read(wanted, order);
      std::map<uint64_t, uint32_t> runs;
      std::set<uint64_t> ended;
      for (int turns = 0; turns < 10000 && world.drive->reader().reading() > 0; ++turns) {
        world.Turn();
        for (const Reader::Progress& progress : world.drive->reader().TakeProgress()) {
          REQUIRE_FALSE(ended.contains(progress.ticket));
          REQUIRE(progress.runs >= runs[progress.ticket]);
          REQUIRE(progress.error == 0);
          REQUIRE(progress.verdict == Verdict::kGood);
          runs[progress.ticket] = progress.runs;
          if (progress.ended) ended.insert(progress.ticket);
          // What is announced is there already.
          const Simulated::Stored& of = world.stored.at(progress.ticket);
          const std::byte* slot = slots[progress.ticket - 1].data();
          REQUIRE(std::memcmp(of.slot.data() + kHeaderBytes.value, slot + kHeaderBytes.value,
                              of.header.layer_bytes * progress.runs) == 0);
        }
      }
      REQUIRE(ended.size() == 30);
      for (const auto& [n, of] : world.stored) {
        CHECK(runs[n] == of.header.runs);
        CHECK(SamePayload(of, slots[n - 1].data()));
      }
    }
    CHECK(world.drive->reader().counters().records == 60);
  }
}

TEST_CASE("A drive takes what has come before it has checked all of what came before, and tells of the runs that it has") {
  Simulated world(1);
  REQUIRE(world.Write(4, KiB(4)));  // in one read
  REQUIRE(world.Settle());
  AlignedBytes slot(world.stored.at(1).slot.size());
  const Reader::Shard wanted = world.Wanted(1, slot.data());
  world.drive->reader().Read({&wanted, 1}, Reader::Order::kWhole);
  world.drive->Begin(world.now);
  world.drive->Wait(absl::InfinitePast());
  CHECK(world.disk->in_flight() == 0);
  std::vector<uint32_t> runs;
  while (world.drive->LookAtNext()) {
    const bool ended = world.drive->reader().reading() == 0;
    CHECK(world.drive->reader().checking() != ended);
    for (const Reader::Progress& progress : world.drive->reader().TakeProgress()) {
      runs.push_back(progress.runs);
      CHECK(progress.ended == ended);
    }
    if (ended) continue;
    CHECK_FALSE(world.drive->idle());
    world.drive->Wait(absl::InfiniteFuture());  // it doesn't sleep
    CHECK_FALSE(world.disk->Sleeps(world.now));
  }
  CHECK(runs == std::vector<uint32_t>{1, 2, 3, 4});
  CHECK(SamePayload(world.stored.at(1), slot.data()));
}

TEST_CASE("Reader by layer reads layer 0 of all shards before anything else, also of reads that wait already") {
  Simulated world(1);
  for (int i = 0; i < 6; ++i) REQUIRE(world.Write(6, KiB(32)));
  REQUIRE(world.Settle());
  std::vector<AlignedBytes> slots;
  std::vector<Reader::Shard> before;
  std::vector<Reader::Shard> wanted;
  for (const auto& [n, of] : world.stored) {
    slots.emplace_back(of.slot.size());
    (n <= 2 ? before : wanted).push_back(world.Wanted(n, slots.back().data()));
  }
  world.drive->reader().Read(before, Reader::Order::kWhole);
  world.drive->queue().Pump();  // as much of them as the budget allows is in flight
  world.drive->reader().Read(wanted, Reader::Order::kByLayer);
  std::map<uint64_t, uint32_t> runs;
  size_t layer_zero = 0;
  for (int turns = 0; turns < 10000 && world.drive->reader().reading() > 0; ++turns) {
    world.Turn();
    for (const Reader::Progress& progress : world.drive->reader().TakeProgress()) {
      if (progress.ticket <= 2) continue;
      if (runs[progress.ticket] == 0) ++layer_zero;
      // With eight pieces in flight at most, nothing later than layer 0 of the last one comes much before it.
      if (layer_zero < 4) CHECK(progress.runs <= 2);
      runs[progress.ticket] = progress.runs;
    }
  }
  CHECK(layer_zero == 4);
  for (const auto& [n, count] : runs) CHECK(count == 6);
}

TEST_CASE("Reader finds every write that the disk lied about, and nothing else") {
  std::map<Verdict, uint64_t> found;
  uint64_t damaged = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    Simulated world(seed);
    world.disk->set_faults({.torn = 10, .misdirected = 10, .dropped = 10});
    for (int i = 0; i < 40; ++i) {
      world.WriteSome();
      world.Turn();
    }
    REQUIRE(world.Settle());
    world.disk->set_faults({});
    for (const auto& [n, of] : world.stored) {
      AlignedBytes slot(of.slot.size());
      std::memcpy(slot.data(), of.slot.data(), slot.size().value);  // the worst: what should be read is there already
      const auto order = world.prng.Percent(50) ? Reader::Order::kWhole : Reader::Order::kByLayer;
      const Reader::Progress end = world.ReadBack(n, slot.data(), order);
      REQUIRE(end.error == 0);
      const bool as_written = world.OnDisk(n);
      CHECK((end.verdict == Verdict::kGood) == as_written);
      if (end.verdict == Verdict::kGood) CHECK(SamePayload(of, slot.data()));
      damaged += !as_written;
      ++found[end.verdict];
    }
  }
  CHECK(damaged > 200);
  for (const Verdict verdict :
       {Verdict::kBlank, Verdict::kNoRecord, Verdict::kMisdirected, Verdict::kTorn, Verdict::kCorrupt})
    CHECK(found[verdict] > 0);
  for (const Verdict verdict : {Verdict::kForged, Verdict::kForeign, Verdict::kVersion, Verdict::kGone})
    CHECK(found[verdict] == 0);
}

TEST_CASE("Reader announces no wrong run when reads go wrong, and finds each that did") {
  uint64_t wrong = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    Simulated world(seed);
    for (int i = 0; i < 20; ++i) REQUIRE(world.WriteSome());
    REQUIRE(world.Settle());
    world.disk->set_faults({.read_error = 20, .flipped = 20, .unread = 20});
    for (const auto& [n, of] : world.stored) {
      AlignedBytes slot(of.slot.size());
      const uint64_t errors = world.disk->injected().errors;
      const uint64_t lies = world.disk->injected().read_lies;
      const Reader::Progress end = world.ReadBack(n, slot.data(), Reader::Order::kByLayer);
      CHECK(std::memcmp(of.slot.data() + kHeaderBytes.value, slot.data() + kHeaderBytes.value,
                        of.header.layer_bytes * end.runs) == 0);
      // A lie may stay without consequence: it flipped a bit of padding.
      if (world.disk->injected().errors == errors && world.disk->injected().read_lies == lies) {
        CHECK((end.error == 0 && end.verdict == Verdict::kGood && end.runs == of.header.runs));
      } else {
        ++wrong;
        const bool failed = end.error == EIO || end.verdict != Verdict::kGood;
        CHECK((failed || SamePayload(of, slot.data())));
        if (world.disk->injected().errors > errors) CHECK(failed);
      }
    }
  }
  CHECK(wrong > 200);
}

TEST_CASE("Reader isn't fooled by what the slot held before when the disk hasn't read at all") {
  Simulated world(9);
  REQUIRE(world.Write(6, KiB(32)));
  REQUIRE(world.Settle());
  AlignedBytes slot(world.stored.at(1).slot.size());
  std::memcpy(slot.data(), world.stored.at(1).slot.data(), slot.size().value);
  world.disk->set_faults({.unread = 1000});
  const Reader::Progress end = world.ReadBack(1, slot.data());
  CHECK(end.verdict == Verdict::kNoRecord);
  CHECK(end.runs == 0);
}

TEST_CASE("Reader tells what else may be at a place") {
  Simulated world(7);
  for (int i = 0; i < 3; ++i) REQUIRE(world.Write(3, KiB(10)));
  REQUIRE(world.Settle());
  const Simulated::Stored& first = world.stored.at(1);
  AlignedBytes slot(first.slot.size());
  const auto read = [&](auto change) {
    Reader::Shard wanted = world.Wanted(1, slot.data());
    change(wanted);
    world.drive->reader().Read({&wanted, 1}, Reader::Order::kWhole);
    std::optional<Reader::Progress> last;
    for (int turns = 0; turns < 1000 && !last; ++turns) {
      world.Turn();
      for (const Reader::Progress& progress : world.drive->reader().TakeProgress()) {
        if (progress.ended) last = progress;
      }
    }
    REQUIRE(last.has_value());
    if (last->verdict != Verdict::kGood) CHECK(last->runs == 0);
    return last->verdict;
  };
  CHECK(read([](Reader::Shard&) {}) == Verdict::kGood);
  CHECK(read([](Reader::Shard& s) { s.identity.key = DigestOf<ChunkKey>(2); }) == Verdict::kOther);
  CHECK(read([](Reader::Shard& s) { s.identity.space.bytes[0] ^= 1; }) == Verdict::kOther);
  CHECK(read([](Reader::Shard& s) { s.run_bytes = KiB(8); }) == Verdict::kOther);  // another layout
  CHECK(read([](Reader::Shard& s) { s.runs = 2; }) == Verdict::kOther);
  CHECK(read([](Reader::Shard& s) { s.codec = Codec{1}; }) == Verdict::kOther);
  CHECK(read([&](Reader::Shard& s) { s.place = *world.stored.at(2).place; }) == Verdict::kOther);
  CHECK(read([](Reader::Shard& s) { s.place.unit += 1; }) == Verdict::kNoRecord);
  CHECK(read([](Reader::Shard& s) { s.place.unit = Simulated::kUnits - 2; }) ==
        Verdict::kOther);  // would end behind the segment
  CHECK(read([](Reader::Shard& s) { s.epoch = 99; }) == Verdict::kGone);
  CHECK(read([](Reader::Shard& s) { s.place.segment = 40 * kDevicesMax; }) == Verdict::kGone);  // never used
  CHECK(read([](Reader::Shard& s) { s.place.segment = 5; }) == Verdict::kGone);                 // another device's
  // Its file lost what was written in this use: the one before shows.
  const uint64_t epoch = world.drive->segments().header(first.place->segment)->epoch;
  Sealer sealer;
  AlignedBytes old(first.slot.size());
  FillPayload(old.data(), 1, first.header.payload_bytes);
  SealRecord(old.data(), first.header,
             MakeSegmentHeader(DigestOf<StoreId>(1), first.place->segment, Simulated::kUnits, epoch - 1, SecretOf(9)),
             *first.place, Checksums::kCompute, &sealer);
  auto& bytes = world.files.files.at(first.place->segment).bytes;
  std::memcpy(bytes.data() + OffsetOf(*first.place).value, old.data(), old.size().value);
  CHECK(read([](Reader::Shard&) {}) == Verdict::kStale);
}

TEST_CASE("Reader ends a cancelled read when it is quiet") {
  Simulated world(8);
  REQUIRE(world.Write(6, KiB(32)));
  REQUIRE(world.Settle());
  AlignedBytes slot(world.stored.at(1).slot.size());
  const Reader::Shard wanted = world.Wanted(1, slot.data());
  world.drive->reader().Read({&wanted, 1}, Reader::Order::kByLayer);
  world.drive->queue().Pump();
  world.drive->reader().Cancel(1);
  world.drive->reader().Cancel(77);  // nobody reads that
  std::optional<Reader::Progress> last;
  for (int turns = 0; turns < 1000 && world.drive->reader().reading() > 0; ++turns) {
    world.Turn();
    for (const Reader::Progress& progress : world.drive->reader().TakeProgress()) last = progress;
  }
  REQUIRE((last && last->ended));
  CHECK(last->error == ECANCELED);
  CHECK(world.disk->in_flight() == 0);
  CHECK(world.drive->queue().idle());
}

TEST_CASE("Reader ends what is cancelled, or fails, while it is being checked, once") {
  const uint32_t fails = GENERATE(0U, 1000U);
  int in_flight_meanwhile = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Simulated world(seed);
    REQUIRE(world.Write(24, KiB(4)));  // in six reads, of which the disk ends some at a time
    REQUIRE(world.Settle());
    AlignedBytes slot(world.stored.at(1).slot.size());
    const Reader::Shard wanted = world.Wanted(1, slot.data());
    Reader& reader = world.drive->reader();
    reader.Read({&wanted, 1}, Reader::Order::kWhole);
    std::vector<Reader::Progress> told;
    const auto take = [&] {
      for (const Reader::Progress& progress : reader.TakeProgress()) told.push_back(progress);
    };
    while (!reader.checking() && reader.reading() > 0) {
      if (!world.drive->LookAtNext()) world.drive->Wait(absl::InfinitePast());
      take();
    }
    const bool in_flight = world.disk->in_flight() > 0;
    in_flight_meanwhile += in_flight;
    world.disk->set_faults({.read_error = fails});
    reader.Cancel(1);
    for (int turns = 0; turns < 1000 && !world.drive->idle(); ++turns) {
      world.Turn();
      take();
    }
    CHECK(world.drive->idle());
    CHECK(std::count_if(told.begin(), told.end(), [](const Reader::Progress& of) { return of.ended; }) == 1);
    REQUIRE(told.back().ended);
    // All of it was in flight, so it ends as it would have.
    CHECK(told.back().verdict == Verdict::kGood);
    CHECK(told.back().error == (in_flight && fails > 0 ? EIO : 0));
    CHECK((told.back().runs == 24) == (told.back().error == 0));
    for (size_t i = 1; i < told.size(); ++i) CHECK(told[i].runs >= told[i - 1].runs);
  }
  CHECK(in_flight_meanwhile > 5);
}

}  // namespace
}  // namespace kvist::ssd
