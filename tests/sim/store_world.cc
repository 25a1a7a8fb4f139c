#include "tests/sim/store_world.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace kvist::sim {
namespace {

constexpr uint32_t kSpaces = 2;
constexpr uint32_t kNames = 40;  // of a space
constexpr uint32_t kPins = 6;
constexpr uint32_t kWritesMax = 24;      // at the same time
constexpr uint32_t kPatience = 300'000;  // steps until all that was asked has ended

StoreWorld::Kind KindOf(uint64_t seed) {
  constexpr StoreWorld::Kind kKinds[] = {StoreWorld::Kind::kHonest, StoreWorld::Kind::kFailing, StoreWorld::Kind::kHonest,
                                         StoreWorld::Kind::kLying};
  return kKinds[seed % 4];
}

// Not all do: the seeds that tests/sim/CMakeLists.txt keeps go on meaning what they did.
bool NotesPins(uint64_t seed) { return seed % 4 != 2 && seed % 16 != 5 && seed % 16 != 9; }

// Likewise.
bool NotesUses(uint64_t seed) { return seed % 5 == 3; }

// Likewise: whose catalogs' logs lose their ends in crashes, so that chunks must be found by their records.
bool LosesTails(uint64_t seed) { return seed % 4 == 0; }

// Likewise: in which a chunk lies in another form with each version.
bool Encodes(uint64_t seed) { return seed % 7 == 2; }

// Where stores that died lie: nothing of theirs is ever gone on with, their ends included.
void Bury(std::unique_ptr<ssd::Store> store) {
  static auto* const graves = new std::vector<ssd::Store*>();
  graves->push_back(store.release());
}

}  // namespace

StoreWorld::StoreWorld(Options options)
    : options_(options), prng_(options.seed), kind_(KindOf(options.seed)), hands_(&prng_) {
  shape_ = {
      .layers = prng_.Between(1, 4), .layer_bytes = Bytes{prng_.Between(100, 6000)}, .order = ssd::SlotOrder::kLayerMajor};
  shards_ = prng_.Between(1, 3);
  segments_ = prng_.Between(5, 9);
  units_ = prng_.Between(24, 60);
  const uint32_t devices = prng_.Between(1, 2);
  for (uint32_t i = 0; i < devices; ++i) {
    files_.push_back(std::make_unique<kvist::test::SimFiles>(folder_ / std::to_string(i)));
    files_.back()->forgets_syncs = options_.plant == Plant::kNoFlush;
  }
  catalog_ = std::make_unique<kvist::test::SimCatalog>(
      kvist::test::SimCatalog::Options{.says_too_early = options_.plant == Plant::kCommitTooEarly,
                                       .forgets_erasures = options_.plant == Plant::kErasuresLost,
                                       .forgets_settled = options_.plant == Plant::kTailsUnread});
  hands_.Sleeps([this](size_t device, absl::Time now) { return disks_.at(device)->Sleeps(now); });
  hands_.Also([this] { return catalog_->Step(); });
  hands_.Also([this] { return catalog_->LoadStep(); });
  // Somebody makes room for the catalog, in the end: a store waits for that.
  hands_.Also([this] {
    if (catalog_full_ == 0 || --catalog_full_ > 0) return false;
    catalog_->Fail(absl::OkStatus(), false);
    return true;
  });
}

StoreWorld::~StoreWorld() {
  if (open_ != nullptr) Bury(std::move(open_));
}

ssd::ShardShape StoreWorld::ShapeOf(ssd::Codec codec) const {
  ssd::ShardShape shape = shape_;
  shape.codec = codec;
  if (codec != ssd::Codec::kRaw) shape.encoded = Bytes{shape_.decoded().value / (1 + static_cast<uint64_t>(codec))};
  return shape;
}

ssd::Codec StoreWorld::CodecOf(uint64_t version) const {
  return Encodes(options_.seed) ? static_cast<ssd::Codec>(version % 3) : ssd::Codec::kRaw;
}

void StoreWorld::Note(const std::string& line, std::string_view words) {
  for (const char c : line) digest_ = (digest_ ^ static_cast<unsigned char>(c)) * 1099511628211u;
  if (options_.trace) std::printf("%6lu %s %.*s\n", events_, line.c_str(), static_cast<int>(words.size()), words.data());
}

void StoreWorld::Open() {
  ssd::StoreOptions store;
  for (size_t i = 0; i < files_.size(); ++i) store.directories.push_back(files_[i]->directory);
  store.segment = ssd::kUnit * units_;
  store.capacity = store.segment * segments_ * files_.size();
  store.scrub_every = absl::ZeroDuration();
  store.hands = &hands_;
  store.catalog = [this] { return catalog_->Open(); };
  store.before_step = [this](std::string_view) { hands_.Passed(); };
  rebuilds_before_ = catalog_->rebuilds();
  failed_before_.clear();
  for (const auto& files : files_) failed_before_.push_back(files->failed);
  disks_.clear();
  store.open_device = [this](const ssd::DeviceOptions& of) -> absl::StatusOr<std::unique_ptr<ssd::Device>> {
    auto disk = std::make_unique<kvist::test::SimDisk>(files_[disks_.size()].get(), of.segment_bytes.value, &prng_);
    disks_.push_back(disk.get());
    return disk;
  };
  auto opened = ssd::Store::Open(std::move(store), this);
  KVIST_CHECK(opened.ok());
  open_ = *std::move(opened);
  store_ = open_.get();
  ++coverage_.lives;
  numbers_.clear();
  for (uint32_t space = 0; space < kSpaces; ++space)
    numbers_.push_back(store_->OpenSpace(ssd::DigestOf<SpaceDigest>(1000 + space), absl::StrCat("space ", space)));
  Note("open");
}

void StoreWorld::Start() {
  started_ = true;
  store_->Start();
  Note("start");
}

void StoreWorld::Forget() {
  started_ = recovered_ = writable_ = false;
  clears_running_ = notes_running_ = 0;
  pins_found_.clear();
  pins_now_.clear();
  uses_at_start_ = uses_.size();
  uses_due_.clear();
  uses_found_.clear();
  catalog_failed_ = catalog_full_ > 0;
  first_ += period_ + 100;  // until what is found says which it is
  period_ = 0;
  writing_.clear();
  reading_.clear();
  known_.clear();
  given_up_.clear();
  cleared_spaces_.clear();
  hidden_now_.clear();
  left_.clear();
  hidden_found_.clear();
  last_position_ = found_backwards_ = 0;
}

void StoreWorld::Close() {
  hands_.CrashAfter(0);
  Note("close");
  const bool settled = kind_ == Kind::kHonest && recovered_ && !catalog_failed_;
  open_.reset();
  hands_.Forget();
  verdict_.Expect(writing_.empty() && reading_.empty() && clears_running_ + notes_running_ == 0, kOneAnswer,
                  "something was not answered when the store was closed");
  ++coverage_.clean_ends;
  // (Of periods before this life's it may be that the store knows none.)
  const int32_t earliest = first_ + std::max(period_ + 1 - static_cast<int32_t>(ssd::UseRows::kPeriods), 0);
  const uint64_t from = uses_at_start_;
  Forget();
  for (uint64_t n = from; settled && n < uses_.size(); ++n) {
    if (uses_[n] >= earliest) uses_due_.insert(n);
  }
}

void StoreWorld::Die() {
  const bool power = prng_.Percent(50);
  Note(power ? "the power fails" : "the process dies");
  ++(power ? coverage_.power_cuts : coverage_.crashes);
  if (started_ && !recovered_) ++coverage_.crashes_while_recovering;
  hands_.Forget();
  for (kvist::test::SimDisk* disk : disks_) power ? disk->Crash() : disk->Die();
  catalog_->Crash(prng_.Below(catalog_->waiting() + 1));
  // A rebuild may have ended, though nobody was told: it knows nothing of what was hidden.
  if (catalog_->rebuilds() != rebuilds_before_) {
    for (auto& [name, history] : histories_) history.hidden = 0;
    for (auto& [name, pin] : pins_) pin.durable = 0;  // perhaps of no pin either
  }
  Bury(std::move(open_));
  Forget();
}

void StoreWorld::BetweenLives() {
  if (prng_.Percent(15)) {
    catalog_->Lose();
    ++coverage_.catalogs_lost;
    for (auto& [name, history] : histories_) history.hidden = 0;  // a rebuild knows nothing of it
    for (auto& [name, pin] : pins_) pin.durable = 0;
    Note("the catalog is lost");
  }
  if (prng_.Percent(15))
    catalog_->FailLoad(prng_.Percent(50) ? absl::DataLossError("checksum") : absl::UnavailableError("EIO"), prng_.Below(80));
  if (LosesTails(options_.seed) && prng_.Percent(50)) {
    const size_t lost = catalog_->LoseTail(prng_.Between(1, 8));
    coverage_.rows_lost += lost;
    Note(absl::StrCat("the catalog's log has lost ", lost, " commits"));
  }
  if (kind_ != Kind::kLying) return;
  if (prng_.Percent(10)) catalog_->Age(prng_.Between(1, 5));
  if (prng_.Percent(20) && !catalog_->durable().empty())
    catalog_->Spoil(std::next(catalog_->durable().begin(), prng_.Below(catalog_->durable().size()))->first);
  for (const auto& files : files_) {
    for (auto& [segment, file] : files->files) {
      if (!prng_.Percent(20)) continue;
      file.bytes[prng_.Below(file.bytes.size())] ^= std::byte{1} << prng_.Below(8);
      ++coverage_.lies;
    }
  }
}

void StoreWorld::Faults(bool on) {
  for (kvist::test::SimDisk* disk : disks_) {
    kvist::test::SimDisk::Faults faults;
    const auto some = [&](uint32_t most) { return on && prng_.Percent(50) ? prng_.Between(1, most) : 0; };
    if (kind_ == Kind::kFailing) {
      faults.read_error = some(20);
      faults.write_error = some(20);
      faults.sync_error = some(20);
    }
    if (kind_ == Kind::kLying) {
      faults.torn = some(20);
      faults.misdirected = some(20);
      faults.dropped = some(20);
      faults.flipped = some(20);
      faults.unread = some(20);
    }
    if (on && prng_.Percent(30)) faults.files_max = prng_.Between(1, segments_);
    disk->set_faults(faults);
  }
  if (on && prng_.Percent(20)) {
    const bool fails = kind_ == Kind::kFailing && prng_.Percent(20);
    catalog_->Fail(fails ? absl::UnavailableError("EIO") : absl::ResourceExhaustedError("full"), prng_.Percent(50));
    catalog_full_ = fails ? 0 : prng_.Between(1, 3000);
    catalog_failed_ = true;
  } else {
    catalog_->Fail(absl::OkStatus(), false);
    catalog_full_ = 0;
  }
  Note(on ? "faults" : "no faults");
}

void StoreWorld::Steps(uint32_t most) {
  for (uint32_t i = prng_.Below(most + 1); i > 0; --i) hands_.Step();
}

void StoreWorld::Event() {
  const Name name{prng_.Below(kSpaces), prng_.Below(kNames)};
  switch (prng_.Below(20)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
      if (writing_.size() < kWritesMax) BeginWrite(name, false);
      break;
    case 6:
    case 7:
    case 8:
    case 9:
      if (!known_.empty()) BeginRead(std::next(known_.begin(), prng_.Below(known_.size()))->first);
      break;
    case 10:
      if (known_.contains(name) && !BeingRead(name)) FreeOne(name);
      break;
    case 11:
      if (prng_.Percent(40)) {
        Hide(name);
      } else if (prng_.Percent(33)) {
        Clear(prng_.Percent(30) ? std::nullopt : std::optional(name.first));
      }
      break;
    case 12:
    case 13: store_->Flush(); break;
    case 14:
      if (prng_.Percent(20)) Faults(prng_.Percent(60));
      break;
    case 15:
      if (prng_.Percent(3)) return Close();
      break;
    default:
      if (!started_) Start();
      break;
  }
  if (NotesPins(options_.seed) && prng_.Percent(20)) NotePin(prng_.Below(kPins));
  if (NotesUses(options_.seed) && prng_.Percent(20)) NoteUses();
  Steps(40);
}

void StoreWorld::Settle() {
  for (uint32_t i = 0; verdict_.kept(); ++i) {
    const bool ended = writing_.empty() && reading_.empty() && clears_running_ + notes_running_ == 0 && recovered_;
    if (ended && !ReliesOnWhatFailed()) return;
    if (i == 0) store_->Flush();
    hands_.Step();
    verdict_.Expect(i < kPatience || !ended, kSurvives, "the owner isn't told of what was given up");
    verdict_.Expect(i < kPatience || ended, kOneAnswer,
                    absl::StrCat(writing_.size(), " writes, ", reading_.size(), " reads, ", clears_running_, " clears and ",
                                 notes_running_, " notes of pins don't end", recovered_ ? "" : ", nor does recovery"));
  }
}

// Faults stop; everything ends; what is durable is there, and after a clear nothing is.
void StoreWorld::End() {
  hands_.CrashAfter(0);
  const auto live_again = [this] {
    if (open_ != nullptr) Close();
    Open();
    Faults(false);
    Start();
    Settle();
  };
  if (open_ == nullptr) Open();
  Faults(false);
  if (!started_) Start();
  Settle();
  live_again();
  const auto read_all = [this] {
    for (const auto& [name, known] : known_) BeginRead(name);
    Settle();
  };
  read_all();
  for (uint32_t i = 0; i < 2 * kNames && verdict_.kept(); ++i) {
    BeginWrite({i % kSpaces, i / kSpaces}, false);
    if (i % 4 == 0) Settle();
  }
  Settle();
  for (uint32_t i = 0; i < kNames && known_.empty() && verdict_.kept(); ++i) {
    BeginWrite({0, i}, false);
    Settle();
  }
  if (kind_ == Kind::kHonest) verdict_.Expect(writable_ && !known_.empty(), kServesAgain, "nothing can be written any more");
  read_all();
  Clear(std::nullopt);
  Settle();
  live_again();
  if (kind_ != Kind::kLying)
    verdict_.Expect(known_.empty(), kClearedIsGone, absl::StrCat(known_.size(), " chunks came back after a clear of all"));
  Close();
}

bool StoreWorld::Run() {
  for (events_ = 0; events_ < options_.events && verdict_.kept(); ++events_) {
    try {
      if (open_ == nullptr) {
        BetweenLives();
        Open();
        if (prng_.Percent(80)) hands_.CrashAfter(prng_.Between(1, prng_.Percent(40) ? 400 : 8000));
      }
      Event();
    } catch (const kvist::test::SimHands::Crash&) { Die(); }
  }
  if (verdict_.kept()) End();
  for (const auto& files : files_) {
    coverage_.errors += files->injected.errors;
    coverage_.lies += files->injected.lies + files->injected.read_lies;
    coverage_.no_space += files->injected.no_space;
  }
  return verdict_.kept();
}

}  // namespace kvist::sim
