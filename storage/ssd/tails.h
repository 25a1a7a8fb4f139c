#ifndef KVIST_STORAGE_SSD_TAILS_H_
#define KVIST_STORAGE_SSD_TAILS_H_

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "absl/functional/function_ref.h"
#include "storage/ssd/catalog_rows.h"

namespace kvist::ssd {

// What a row is worth to a start: it leads nowhere, to what can't be read just now, or to its chunk.
enum class Standing : uint8_t { kDead, kWithheld, kUsable };

// Sifts the rows of a load, and puts chunks among them whose rows a crash may have taken, where those would have been: parents before their children.
// Pure. Threads: one at a time.
class Tails {
 public:
  using Judge = absl::FunctionRef<Standing(const ChunkRow& row)>;  // asked once of each row that is handed over
  using IsWhole = absl::FunctionRef<bool(const ChunkRow& row)>;    // what lies there, by its checksums
  struct Sifted {
    std::vector<ChunkRow> usable;    // in the order of a load
    std::vector<ChunkRow> adopted;   // of them, those that have no row yet
    std::vector<ChunkRow> withheld;  // they keep their rows
    std::vector<ChunkId> dead;       // whose rows lead nowhere, and that nothing was adopted for
  };

  // What a record says that may have no row. Of one chunk the last that is noted counts.
  void Note(ChunkRow row) { noted_.insert_or_assign(row.id, std::move(row)); }
  // Forgets what lies at such places.
  void Forget(absl::FunctionRef<bool(Place)> there);
  void Clear() { noted_.clear(); }
  std::set<uint32_t> Segments() const;

  // The next rows of a load, in its order unless nothing is noted. A row that isn't dead stays though a later record of its chunk was noted: it is the
  // same KV.
  Sifted Sift(std::vector<ChunkRow> rows, Judge judge, IsWhole is_whole);
  // What comes behind all rows.
  Sifted Rest(Judge judge, IsWhole is_whole);

 private:
  struct InLoadOrder {
    bool operator()(const ChunkId& a, const ChunkId& b) const {
      return std::tie(a.position, a.space, a.group, a.key) < std::tie(b.position, b.space, b.group, b.key);
    }
  };
  static bool Adopt(ChunkRow row, Judge judge, IsWhole is_whole, Sifted* to);

  std::map<ChunkId, ChunkRow, InLoadOrder> noted_;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_TAILS_H_
