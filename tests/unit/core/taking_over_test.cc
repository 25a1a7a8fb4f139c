// A core goes on with the slots of another that has ended. That it does so from any state is tests/sim's; here is what a disk adds, and
// what is left behind by whoever crashed badly.
#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "daemon/core/left_index.h"
#include "storage/base/unique_fd.h"
#include "storage/pool/sections.h"
#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

const SpaceSpec kOfOneRank = SpaceNamed("dense", {KiB(8)});
const SpaceSpec kOfTwoRanks = SpaceNamed("two", {KiB(4), KiB(8)});

// Cores over one pool's memory, one after the other, each with its index in a file.
class Successors {
 public:
  explicit Successors(bool disk = false) {
    options_.slabs = 4;
    if (disk) options_.core.disk = CoreOptions::Disk{.reserve = KiB(8)};
    file_ = UniqueFd(::memfd_create("index", MFD_CLOEXEC));
    sections_ = std::make_unique<pool::FileSections>(file_.get());
    core = std::make_unique<CoreFixture>(options_, sections_.get());
  }

  // The core ends between two events; `spaces` are those that the next one can serve. What it told.
  Core::TakenOver Next(const std::vector<SpaceSpec>& spaces = {kOfOneRank, kOfTwoRanks}) {
    UniqueFd file(::memfd_create("index", MFD_CLOEXEC));
    auto sections = std::make_unique<pool::FileSections>(file.get());
    const pool::SectionsOfFile left = pool::SectionsOfFile::Map(file_.get()).value();
    const LeftIndex index(left.sections());
    core = std::make_unique<CoreFixture>(options_, sections.get());
    std::vector<std::optional<SpaceId>> here;
    for (const LeftIndex::Space& space : index.spaces()) {
      here.emplace_back();
      for (const SpaceSpec& spec : spaces) {
        if (spec.digest != space.digest) continue;
        core->Do(SpaceFound{spec});
        here.back() = core->core->FindSpace(spec.digest);
      }
    }
    const Core::TakenOver told = core->core->TakeOver(index, here);
    core->watched = false;
    core->core->CheckInvariants();
    file_ = std::move(file);
    sections_ = std::move(sections);
    return told;
  }
  // What lies in the file, for a test to spoil.
  std::vector<pool::SectionsOfFile::Section> Left() {
    spoiled_.push_back(pool::SectionsOfFile::Map(file_.get()).value());
    return spoiled_.back().sections();
  }

  std::unique_ptr<CoreFixture> core;

 private:
  CoreFixture::Options options_;
  UniqueFd file_;
  std::unique_ptr<pool::FileSections> sections_;
  std::vector<pool::SectionsOfFile> spoiled_;
};

TEST_CASE("What is whole in slots is a hit for the next core, in the same slots") {
  Successors cores;
  const SessionId worker = cores.core->Worker("engine", kOfOneRank);
  const std::vector<ChunkKey> keys = KeysOf({1, 2, 3});
  CHECK(cores.core->Keep(worker, keys) == 3);
  const LookupAnswered before = cores.core->Lookup(worker, keys, absl::Seconds(1));
  const std::optional<CopyStarted> load = cores.core->Load(worker, before.lease, 0, 3);
  REQUIRE(load.has_value());

  const Core::TakenOver told = cores.Next();
  CHECK(told.chunks == 3);
  CHECK(told.bytes == KiB(24));
  CHECK(told.in_doubt == 0);
  CHECK(cores.core->core->status().leases == 0);
  const SessionId again = cores.core->Worker("engine", kOfOneRank);
  const LookupAnswered after = cores.core->Lookup(again, keys, absl::Seconds(1));
  CHECK(after.chunks == 3);
  const std::optional<CopyStarted> reload = cores.core->Load(again, after.lease, 0, 3);
  REQUIRE(reload.has_value());
  for (size_t k = 0; k < 3; ++k) CHECK(reload->slots[k].index == load->slots[k].index);
}

TEST_CASE("A chunk that one of two ranks had stored is no hit, and its slots rest for a while") {
  Successors cores;
  const SessionId first = cores.core->Worker("engine", kOfTwoRanks, 0),
                  second = cores.core->Worker("engine", kOfTwoRanks, 1);
  CHECK(cores.core->Keep(first, KeysOf({1})) == 1);
  CHECK(cores.core->Keep(second, KeysOf({1})) == 1);
  CHECK(cores.core->Keep(first, KeysOf({2}), KeyOf(1)) == 1);

  const Core::TakenOver told = cores.Next();
  CHECK(told.chunks == 1);
  CHECK(told.in_doubt == 2);
  const SessionId again = cores.core->Worker("engine", kOfTwoRanks, 0);
  CHECK(cores.core->Lookup(again, KeysOf({1, 2})).chunks == 1);
  cores.core->PassTime(absl::Seconds(1));  // from here on they rest
  CHECK(cores.core->core->waits_for_clock());
  cores.core->PassTime(absl::Seconds(59));
  CHECK(cores.core->core->status().slots_in_doubt == 2);

  SECTION("and longer when this core ends, too") {
    CHECK(cores.Next().in_doubt == 2);
    cores.core->PassTime(absl::Seconds(1));
    CHECK(cores.core->core->status().slots_in_doubt == 2);
    cores.core->PassTime(absl::Seconds(60));
  }
  cores.core->PassTime(absl::Seconds(2));
  CHECK(cores.core->core->status().slots_in_doubt == 0);
  CHECK(cores.core->slots->live_slots() == 2);
}

TEST_CASE("What was cleared doesn't come back, however far the clear had come") {
  Successors cores;
  const SessionId worker = cores.core->Worker("engine", kOfOneRank);
  CHECK(cores.core->Keep(worker, KeysOf({1, 2})) == 2);
  cores.core->Do(ClearAsked{JobId{1}});
  CHECK(cores.core->Keep(worker, KeysOf({3})) == 1);

  CHECK(cores.Next().chunks == 1);
  const SessionId again = cores.core->Worker("engine", kOfOneRank);
  CHECK(cores.core->Lookup(again, KeysOf({1})).chunks == 0);
  CHECK(cores.core->Lookup(again, KeysOf({3})).chunks == 1);
  CHECK(cores.core->slots->live_slots() == 1);
}

TEST_CASE("A space that the next core can't serve is left out: its slots are free, but those that were being filled") {
  Successors cores;
  CHECK(cores.core->Keep(cores.core->Worker("engine", kOfOneRank), KeysOf({1, 2})) == 2);
  REQUIRE(cores.core->Store(cores.core->Worker("engine", kOfOneRank), KeysOf({7})).has_value());
  const Core::TakenOver told = cores.Next({kOfTwoRanks});
  CHECK(told.chunks == 0);
  CHECK(told.in_doubt == 1);
  CHECK(cores.core->slots->live_slots() == 1);
}

TEST_CASE("A chunk that hangs on one that was only on disk is a hit as soon as the disk says so") {
  Successors cores(/*disk=*/true);
  const SessionId worker = cores.core->Worker("engine", kOfOneRank);
  CHECK(cores.core->Keep(worker, KeysOf({1})) == 1);
  const SpaceId space = *cores.core->core->FindSpace(kOfOneRank.digest);
  const auto found = [&](uint64_t n, std::optional<ChunkKey> parent, uint32_t position) {
    return ChunksFound{space, {{GroupId{}, KeyOf(n), parent, position, {DiskPlace{1, 10 * static_cast<uint32_t>(n)}}}}};
  };
  cores.core->Do(found(5, {}, 0));
  cores.core->Do(found(6, KeyOf(5), 1));
  CHECK(cores.core->Keep(worker, KeysOf({7}), KeyOf(6)) == 1);

  CHECK(cores.Next().chunks == 2);
  CHECK(cores.Next().chunks == 2);  // before the disk has said anything
  const SessionId again = cores.core->Worker("engine", kOfOneRank);
  CHECK(cores.core->Lookup(again, KeysOf({1})).chunks == 1);
  CHECK(cores.core->Lookup(again, KeysOf({5, 6, 7})).chunks == 0);
  cores.core->Do(found(5, {}, 0));
  cores.core->Do(found(6, KeyOf(5), 1));
  cores.core->Do(found(1, {}, 0));  // whose bytes are in a slot, too
  CHECK(cores.core->Lookup(again, KeysOf({5, 6, 7})).chunks == 3);
  CHECK(cores.core->core->status().below == 2);

  // Nothing is written before it is known what is there already.
  const auto writes = [](const Effects& effects) {
    return std::count_if(effects.begin(), effects.end(),
                         [](const Effect& e) { return std::holds_alternative<WriteStarted>(e); });
  };
  CHECK(writes(cores.core->Do(DiskWritable{true})) == 0);
  CHECK(writes(cores.core->Do(FlushAsked{again, RequestTag{1}})) == 0);
  CHECK(writes(cores.core->PassTime(absl::Milliseconds(1))) == 0);
  Effects told = cores.core->Do(DiskTold{});
  const Effects later = cores.core->PassTime(absl::Milliseconds(1));
  CHECK(writes(told) + writes(later) == 1);  // 7; 1 was found
}

TEST_CASE("Whatever lies in the index that was left, no slot is given twice and nothing is out of bounds") {
  std::mt19937_64 random(7);
  for (uint32_t round = 0; round < 400; ++round) {
    Successors cores;
    const SessionId one = cores.core->Worker("one", kOfOneRank);
    const SessionId first = cores.core->Worker("two", kOfTwoRanks, 0), second = cores.core->Worker("two", kOfTwoRanks, 1);
    for (uint64_t n = 1; n < 6; ++n) {
      const std::optional<ChunkKey> parent = n > 1 ? std::optional(KeyOf(n - 1)) : std::nullopt;
      cores.core->Keep(one, KeysOf({n}), parent);
      cores.core->Keep(first, KeysOf({n}), parent);
      if (n % 3 != 0) cores.core->Keep(second, KeysOf({n}), parent);
    }
    for (const pool::SectionsOfFile::Section& section : cores.Left()) {
      const size_t used = std::min<size_t>(section.bytes.size(), 2000);
      for (uint32_t spoiled = random() % 12; spoiled > 0; --spoiled) {
        std::byte& byte = section.bytes[random() % used];
        byte = random() % 2 == 0 ? std::byte(random()) : byte ^ std::byte(1 << random() % 8);
      }
    }
    const Core::TakenOver told = cores.Next();  // checks the core's and the pool's invariants
    const SessionId again = cores.core->Worker("one", kOfOneRank);
    for (uint64_t n = 10; n < 14; ++n) cores.core->Keep(again, KeysOf({n}));
    cores.core->PassTime(absl::Seconds(1));
    cores.core->PassTime(absl::Seconds(61));
    CHECK(told.chunks <= 10);  // so many there were
    CHECK(cores.core->core->status().slots_in_doubt == 0);
  }
}

TEST_CASE("Sections are found in the order in which they were made, and end where something else begins") {
  const UniqueFd file(::memfd_create("sections", MFD_CLOEXEC));
  pool::FileSections sections(file.get());
  const Bytes large = pool::FileSections::kWindow / 2 + KiB(1);
  for (uint32_t i = 0; i < 3; ++i) std::memset(sections.New(7, i, i == 1 ? Bytes{5} : large), static_cast<int>(i + 1), 5);
  pool::SectionsOfFile read = pool::SectionsOfFile::Map(file.get()).value();
  REQUIRE(read.sections().size() == 3);
  for (uint32_t i = 0; i < 3; ++i) {
    CHECK(read.sections()[i].kind == 7);
    CHECK(read.sections()[i].detail == i);
    CHECK(read.sections()[i].bytes.size() == (i == 1 ? 5 : large.value));
    CHECK(read.sections()[i].bytes[4] == std::byte(i + 1));
    CHECK(reinterpret_cast<uintptr_t>(read.sections()[i].bytes.data()) % pool::kSectionAlign.value == 0);
  }
  std::memset(read.sections()[1].bytes.data() - pool::kSectionAlign.value, 0xff, 16);
  // Nor what comes behind it, in windows of its own: it would be taken for another.
  CHECK(pool::SectionsOfFile::Map(file.get()).value().sections().size() == 1);
  CHECK(pool::SectionsOfFile::Map(UniqueFd(::memfd_create("empty", 0)).get()).value().sections().empty());
}

}  // namespace
}  // namespace kvist::core
