#ifndef KVIST_TESTS_SUPPORT_TOLD_CHUNKS_H_
#define KVIST_TESTS_SUPPORT_TOLD_CHUNKS_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"

namespace kvist::test {

// Who watches a core's chunks: builds what they are from what it says, twice. `told` is read once and then only told; `beside` is read again
// and again, a few chunks between two events, while it is told the changes. Both must be what the core holds.
class ToldChunks {
 public:
  // Before anything else, and again of another core, or when it has taken chunks over.
  void Watch(core::Core* core) {
    core::Effects effects;
    core->Handle(core::ChunksWatched{}, &effects);
    ReadAgain(*core);
  }

  // Takes what an event has said of chunks out of its effects; it is the last of them. What is wrong then, or "".
  std::string Hear(core::Effects* effects, const core::Core& core) {
    for (size_t i = 0; i + 1 < effects->size(); ++i) {
      if (std::holds_alternative<core::ChunksChanged>((*effects)[i])) return "changes came before other effects";
    }
    if (!effects->empty() && std::holds_alternative<core::ChunksChanged>(effects->back())) {
      const auto changed = std::get<core::ChunksChanged>(std::move(effects->back()));
      effects->pop_back();
      if (changed.again) ReadAgain(core);
      for (const core::ChunkWhere& chunk : changed.chunks) {
        Set(&told_, chunk);
        Set(&beside_, chunk);
      }
    }
    if (std::string differs = Differs(told_, core); !differs.empty()) return "told: " + differs;
    return ReadOn(core);
  }

  uint64_t read() const { return read_; }  // so many times all chunks, beside changes

 private:
  using Chunks = std::map<std::tuple<uint32_t, uint16_t, ChunkKey>, uint8_t>;
  static constexpr uint32_t kSlice = 3;

  static void Set(Chunks* chunks, const core::ChunkWhere& chunk) {
    const std::tuple name{chunk.space.value, chunk.group.value, chunk.key};
    if (chunk.tiers == 0) {
      chunks->erase(name);
    } else {
      (*chunks)[name] = chunk.tiers;
    }
  }

  static Chunks All(const core::Core& core) {
    Chunks all;
    std::vector<core::ChunkWhere> chunks;
    for (uint64_t cursor = 0; cursor != core::Core::kReadAll;) cursor = core.ReadChunks(cursor, UINT32_MAX, &chunks);
    for (const core::ChunkWhere& chunk : chunks) Set(&all, chunk);
    return all;
  }

  void ReadAgain(const core::Core& core) {
    told_ = All(core);
    beside_.clear();
    cursor_ = 0;
  }

  std::string ReadOn(const core::Core& core) {
    std::vector<core::ChunkWhere> slice;
    cursor_ = core.ReadChunks(cursor_, kSlice, &slice);
    if (slice.size() > kSlice) return absl::StrCat("a slice of ", slice.size(), " chunks");
    for (const core::ChunkWhere& chunk : slice) {
      Set(&beside_, chunk);
      uint8_t tiers = 0;
      core.Where(chunk.space, chunk.group, {&chunk.key, 1}, {&tiers, 1});
      if (tiers != chunk.tiers && tiers != 0)  // 0: what it hangs on was dropped
        return absl::StrCat("a chunk that is read in tiers ", chunk.tiers, " is asked for and in ", tiers);
    }
    if (cursor_ != core::Core::kReadAll) return "";
    std::string differs = Differs(beside_, core);
    beside_.clear();
    cursor_ = 0;
    ++read_;
    return differs.empty() ? "" : "read beside changes: " + differs;
  }

  static std::string Differs(const Chunks& known, const core::Core& core) {
    const Chunks all = All(core);
    if (known == all) return "";
    for (const auto& [name, tiers] : known) {
      const auto there = all.find(name);
      if (there == all.end()) return absl::StrCat("a chunk in tiers ", tiers, " that is gone");
      if (there->second != tiers) return absl::StrCat("a chunk in tiers ", tiers, " that is in ", there->second);
    }
    return absl::StrCat(known.size(), " chunks of ", all.size());
  }

  Chunks told_, beside_;
  uint64_t cursor_ = 0;
  uint64_t read_ = 0;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_TOLD_CHUNKS_H_
