#ifndef KVIST_TESTS_SIM_STORE_WORLD_H_
#define KVIST_TESTS_SIM_STORE_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/ssd/store.h"
#include "tests/sim/prng.h"
#include "tests/sim/verdict.h"
#include "tests/support/sim_catalog.h"
#include "tests/support/sim_disk.h"
#include "tests/support/sim_hands.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/records.h"

namespace kvist::sim {

// The real store (storage/ssd/store.h) over simulated disks and a simulated catalog, with an owner that does all that an owner may, through
// crashes between any two steps, power cuts that lose what wasn't flushed, full disks, lost catalogs, and, by seed, disks that fail or lie.
//
// What is checked, after every call of the store: what was called durable is there and is what was written last; nothing that was cleared comes
// back; bytes that are called right are; everything asked ends, once. Where disks fail or lie what they hold may be lost; never wrong.
class StoreWorld final : private ssd::StoreOwner {
 public:
  // What becomes of disks and catalog in a seed.
  enum class Kind : uint8_t { kHonest, kFailing, kLying };
  // What is wrong around the store, as if it had that bug: each must be found.
  enum class Plant : uint8_t {
    kNone,
    kNoFlush,         // syncs do nothing: what is called durable isn't
    kCommitTooEarly,  // commits are called durable before they are
    kErasuresLost,    // rows of what was freed stay
    kClearTooEarly,   // a clear counts as durable when it is asked for
    kUnchecked,       // what a read has refused is served
    kTailsUnread,     // nobody looks for records whose rows the catalog has lost
  };
  struct Options {
    uint64_t seed = 1;
    uint64_t events = 500;  // of the owner
    bool trace = false;
    Plant plant = Plant::kNone;
  };
  // Plain numbers: what has happened.
  struct Coverage {
    uint64_t lives = 0, crashes = 0, power_cuts = 0, crashes_while_recovering = 0, clean_ends = 0;
    uint64_t rebuilds = 0, catalogs_lost = 0;
    uint64_t rows_lost = 0;  // commits that told of chunks
    uint64_t adopted = 0;    // chunks that were found by their records beside the catalog
    uint64_t written = 0, refused = 0, read = 0, damaged_reads = 0, failed_reads = 0;
    uint64_t looked_for = 0;  // times a durable chunk had to be found
    uint64_t found = 0, cleared = 0, hidden = 0, freed = 0, left = 0, wanted_back = 0, written_again = 0, given_up = 0;
    uint64_t errors = 0, lies = 0, no_space = 0;
    uint64_t pins_noted = 0, pins_found = 0;
    uint64_t uses_noted = 0, uses_found = 0;
  };

  explicit StoreWorld(Options options);
  ~StoreWorld() override;

  bool Run();
  const Verdict& verdict() const { return verdict_; }
  const Coverage& coverage() const { return coverage_; }
  uint64_t events() const { return events_; }
  uint64_t digest() const { return digest_; }

 private:
  using Name = std::pair<uint32_t, uint32_t>;  // space, which of its chunks
  // All that was ever written under a name.
  struct History {
    uint64_t cleared = 0;             // versions below must not be seen again
    uint64_t hidden = 0;              // nor these, while the catalog that knows of it is there
    uint64_t next = 0;                // versions begun
    std::optional<uint64_t> durable;  // must be there, or a later one
    uint64_t was_durable = 0;         // the last that was; found again it must stay
    std::vector<ssd::Place> places;   // of that
    bool back = false;                // freed, and found again: when the power failed its room was being used again, perhaps
  };
  struct Writing {
    Name name;
    uint64_t version = 0;
    std::vector<ssd::AlignedBytes> slots;
    bool cleared = false;
    bool again = false;  // its segment was wanted back
  };
  struct Reading {
    Name name;
    uint64_t floor = 0, end = 0;  // versions that may be read
    std::vector<ssd::AlignedBytes> slots;
    ssd::Codec codec = ssd::Codec::kRaw;
    bool replaced = false;  // meanwhile: it may not be there any more
    bool given_up = false;  // cleared meanwhile: whatever comes
  };
  struct Known {
    std::vector<ssd::Place> places;
    ssd::Codec codec = ssd::Codec::kRaw;
  };
  // All that was ever noted of a pin: [version] whether it was over then; it didn't begin by being there.
  struct PinHistory {
    std::vector<bool> over = {true};
    uint64_t durable = 0;  // this version or a later one must be found
  };

  // store_world.cc: what happens.
  void Open();
  void Start();
  void Close();
  void Die();
  void Forget();
  void BetweenLives();
  void Event();
  void Steps(uint32_t most);
  void Settle();
  void End();
  void Faults(bool on);

  // store_owner.cc: what the owner does and hears.
  void BeginWrite(const Name& name, bool again);
  void BeginRead(const Name& name);
  void FreeOne(const Name& name);
  void LeaveOne(const Name& name);
  void Clear(std::optional<uint32_t> space);
  void Hide(const Name& name);
  void NotePin(uint32_t pin);
  void NoteUses();
  void CheckPins(const ssd::Recovery& recovery);
  void CheckUses(const ssd::Recovery& recovery);
  ssd::ShardShape ShapeOf(ssd::Codec codec) const;
  ssd::Codec CodecOf(uint64_t version) const;
  bool MayBe(const Reading& reading, uint32_t shard, uint32_t layers) const;
  ssd::ChunkId IdOf(const Name& name) const;
  Name NameOf(const ssd::ChunkId& id) const;
  uint64_t SeedOf(const Name& name, uint64_t version, uint32_t shard) const;
  // The first version that may be seen: when what was last called durable isn't there (any more), a rebuild may find one before it.
  uint64_t FloorOf(const History& history) const {
    return history.durable && !MayBeLost(history.places) ? *history.durable : history.cleared;
  }
  bool MayBeLost(const std::vector<ssd::Place>& places) const;
  bool BeingRead(const Name& name) const;
  // Whether the owner relies on what lies in a segment that was given up in this life: it is to be told.
  bool ReliesOnWhatFailed() const;

  void Written(Ticket ticket, absl::Status status, std::vector<ssd::Place> places) override;
  void Read(Ticket ticket, absl::Status status) override;
  void Writable(bool writable, const std::string& why) override;
  bool Found(std::vector<ssd::FoundSpace> spaces, std::vector<ssd::FoundChunk> chunks) override;
  void FoundPins(std::vector<ssd::PinRow> pins, bool withheld) override;
  void FoundUses(std::vector<ssd::UsesNote> uses) override;
  void Recovered(const ssd::Recovery& recovery) override;
  void WantsBack(std::vector<ssd::PlaceWanted> records) override;
  void Damaged(std::vector<ssd::PlaceWanted> records) override;
  void GivenUp(std::vector<ssd::PlaceWanted> records) override;

  // `words` have paths in them, and aren't part of the digest.
  void Note(const std::string& line, std::string_view words = {});

  const Options options_;
  Prng prng_;
  const Kind kind_;
  Verdict verdict_;
  Coverage coverage_;
  uint64_t events_ = 0;
  uint64_t digest_ = 14695981039346656037u;

  // What lies on the machine, and survives.
  kvist::test::TempDir folder_;
  std::vector<std::unique_ptr<kvist::test::SimFiles>> files_;  // [device]
  std::unique_ptr<kvist::test::SimCatalog> catalog_;
  kvist::test::SimHands hands_;

  // Of this life.
  ssd::ShardShape shape_;
  uint32_t shards_ = 1;
  uint32_t segments_ = 8;  // a device
  uint32_t units_ = 32;    // of a segment
  std::vector<kvist::test::SimDisk*> disks_;
  std::unique_ptr<ssd::Store> open_;
  ssd::Store* store_ = nullptr;  // while it is being closed, too
  bool recovered_ = false;
  bool started_ = false;
  bool writable_ = false;
  uint64_t next_ticket_ = 0;
  std::vector<uint32_t> numbers_;  // [space] as the store names them
  std::map<uint64_t, Writing> writing_;
  std::map<uint64_t, Reading> reading_;
  std::map<Name, Known> known_;
  std::set<Name> given_up_;                        // while they are being read
  std::vector<std::set<uint32_t>> failed_before_;  // [device] segments, in lives before
  uint64_t rebuilds_before_ = 0;                   // this life: of the catalog
  uint32_t clears_running_ = 0;
  std::map<Name, uint64_t> left_;  // in this life; a hidden one's versions below must not be seen again
  std::set<Name> hidden_now_;      // in this life: what is found of them later is of before
  std::set<Name> hidden_found_;    // in this life, though a load should not have
  uint32_t last_position_ = 0;     // of what was found in this life, and how often one came behind a later one
  uint32_t found_backwards_ = 0;
  std::set<uint32_t> cleared_spaces_;  // in this life: what is found of them later is of before
  uint32_t catalog_full_ = 0;          // for so many steps, about

  std::map<Name, History> histories_;  // over all lives
  std::map<uint32_t, PinHistory> pins_;
  uint32_t notes_running_ = 0;                // this life
  std::map<uint32_t, uint64_t> pins_found_;   // in this life, and their versions
  std::set<uint32_t> pins_now_;               // noted in this life: what is found of them is of before
  std::vector<int32_t> uses_;                 // [use] the period in which it was noted, counted over all lives
  uint64_t uses_at_start_ = 0;                // of this life
  std::set<uint64_t> uses_due_, uses_found_;  // to be found in this life, for the last one has ended well; and found
  bool catalog_failed_ = false;               // in this life: what was noted may not be there
  int32_t period_ = 0, first_ = 0;            // of this life, as it counts them; and its period 0, counted over all lives
};

}  // namespace kvist::sim

#endif  // KVIST_TESTS_SIM_STORE_WORLD_H_
