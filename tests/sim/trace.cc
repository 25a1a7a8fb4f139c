#include "tests/sim/trace.h"

#include <span>
#include <variant>

#include "absl/strings/str_cat.h"

namespace kvist::sim {
namespace {

std::string Show(const ChunkKey& key) {
  return absl::StrCat(absl::Hex(static_cast<uint16_t>(key.word(0)), absl::kZeroPad4));
}

std::string Show(std::span<const ChunkKey> keys) {
  std::string out = "[";
  for (const ChunkKey& key : keys) absl::StrAppend(&out, out.size() > 1 ? " " : "", Show(key));
  return out + "]";
}

template <class Tag>
std::string Show(Handle<Tag> handle) {
  return absl::StrCat(handle.index, "/", handle.generation);
}

struct Printer {
  std::string operator()(const core::SessionAccepted& e) {
    return absl::StrCat("accepted session ", e.session.value, " space ", e.space.value);
  }
  std::string operator()(const core::SessionRefused& e) {
    return absl::StrCat("refused session ", e.session.value, ": ", e.why.ToString());
  }
  std::string operator()(const core::PinAnswered& e) {
    return absl::StrCat("pin tag ", e.tag.value, ": ", e.status.ToString(), ", ", e.chunks, " chunks");
  }
  std::string operator()(const core::SessionDrained& e) { return absl::StrCat("drained session ", e.session.value); }
  std::string operator()(const core::LookupAnswered& e) {
    return absl::StrCat("answer session ", e.session.value, " tag ", e.tag.value, ": ", e.chunks, " chunks, lease ",
                        Show(e.lease));
  }
  std::string operator()(const core::CopyStarted& e) {
    std::string out = absl::StrCat(e.direction == core::Direction::kLoad ? "load" : "store", " op ", Show(e.op), " session ",
                                   e.session.value, " tag ", e.tag.value, ":");
    for (size_t i = 0; i < e.slots.size(); ++i) absl::StrAppend(&out, " ", e.chunk_of[i], "@", Show(e.slots[i]));
    return out;
  }
  std::string operator()(const core::CopyWaits& e) {
    return absl::StrCat("op ", Show(e.op), " session ", e.session.value, " tag ", e.tag.value, " waits for reads");
  }
  std::string operator()(const core::WriteStarted& e) { return absl::StrCat("write chunk ", Show(e.chunk)); }
  std::string operator()(const core::SlotsCopyStarted& e) {
    std::string out = "copy slots";
    for (const auto& [from, to] : e.slots) absl::StrAppend(&out, " ", Show(from), ">", Show(to));
    return out;
  }
  std::string operator()(const core::ReadStarted& e) { return absl::StrCat("read chunk ", Show(e.chunk)); }
  std::string operator()(const core::PlacesFreed& e) { return absl::StrCat(e.chunks.size(), " chunks' places are free"); }
  std::string operator()(const core::PinsNoted& e) { return absl::StrCat("note ", e.notes.size(), " pins"); }
  std::string operator()(const core::UsesNoted& e) {
    return absl::StrCat("note ", e.noted.uses.size(), " uses in period ", e.noted.period);
  }
  std::string operator()(const core::PinLost& e) { return absl::StrCat("pin lost: ", e.why.ToString()); }
  std::string operator()(const core::SpaceCleared& e) { return absl::StrCat("keep clear of job ", e.job.value); }
  std::string operator()(const core::RemoteForgotten& e) { return absl::StrCat("forget ", e.keys.size(), " keys"); }
  std::string operator()(const core::RecodeStarted& e) { return absl::StrCat("encode of job ", e.job.value); }
  std::string operator()(const core::RecodeStopped& e) { return absl::StrCat("stop encoding of job ", e.job.value); }
  std::string operator()(const core::ChunksChanged& e) {
    std::string out = e.again ? "all is to be read again" : "";
    for (const core::ChunkWhere& chunk : e.chunks)
      absl::StrAppend(&out, out.empty() ? "" : ", ", Show(chunk.key), " in ", chunk.tiers);
    return out;
  }
  std::string operator()(const core::RemoteAsked& e) { return absl::StrCat("ask for ", e.keys.size(), " keys"); }
  std::string operator()(const core::ChunksHidden& e) {
    return absl::StrCat("hide ", e.chunks.size(), " chunks of job ", e.job.value);
  }
  std::string operator()(const core::Flushed& e) { return absl::StrCat("flushed ", e.chunks, ": ", e.status.ToString()); }
  std::string operator()(const core::CopyCancelled& e) { return absl::StrCat("cancel op ", Show(e.op)); }
  std::string operator()(const core::OpEnded& e) {
    return absl::StrCat("ended session ", e.session.value, " tag ", e.tag.value, ": ", e.status.ToString(), " copied ",
                        e.copied, " skipped ", e.skipped, " refused ", e.refused);
  }
  std::string operator()(const core::Answered& e) {
    return absl::StrCat("answered session ", e.session.value, " tag ", e.tag.value, ": ", e.status.ToString(), " ", e.chunks,
                        " chunks, allocation ", Show(e.allocation));
  }
  std::string operator()(const core::JobEnded& e) {
    return absl::StrCat("job ", e.job.value, e.how == core::JobState::kDone ? " done" : " cancelled", ": ", e.chunks,
                        " chunks");
  }
  std::string operator()(const core::CorruptionFound& e) {
    return absl::StrCat("corrupt ", e.tier == core::Tier::kDram ? "in DRAM" : "on disk", " in space ", e.space.value, ": ",
                        e.chunks, " chunks");
  }
};

}  // namespace

std::string Print(const core::SessionOpened& e) {
  return absl::StrCat("open session ", e.session.value, " of ", e.space.tenant, "/", e.instance,
                      e.role == core::Role::kWorker ? " rank " : " scheduler ", e.rank.value, " ", e.space.model, " ranks ",
                      e.space.ranks(), " groups ", e.space.groups.size());
}
std::string Print(const core::SessionClosed& e) { return absl::StrCat("dead session ", e.session.value); }
std::string Print(const core::LookupAsked& e) {
  return absl::StrCat("lookup session ", e.session.value, " tag ", e.tag.value, " ", Show(e.keys), " lease ",
                      absl::FormatDuration(e.lease));
}
std::string Print(const core::ReleaseAsked& e) {
  return absl::StrCat("release session ", e.session.value, " lease ", Show(e.lease));
}
std::string Print(const core::LoadAsked& e) {
  return absl::StrCat("load session ", e.session.value, " tag ", e.tag.value, " lease ", Show(e.lease), " group ",
                      e.group.value, " first ", e.first, " count ", e.count);
}
std::string Print(const core::StoreAsked& e) {
  return absl::StrCat("store session ", e.session.value, " tag ", e.tag.value, " group ", e.group.value, " after ",
                      e.parent.has_value() ? Show(*e.parent) : "-", " ", Show(e.keys));
}
std::string Print(const core::PinAsked& e) {
  return absl::StrCat("pin session ", e.session.value, " tag ", e.tag.value, " ", Show(e.keys));
}
std::string Print(const core::OperatorPinAsked& e) {
  return absl::StrCat("pin space ", e.space.value, " of ", e.owner, " for ", absl::FormatDuration(e.lasts), " tag ",
                      e.tag.value, " ", Show(e.keys));
}
std::string Print(const core::UnpinAsked& e) {
  return absl::StrCat("unpin session ", e.session.value, " tag ", e.tag.value, " ", Show(e.keys));
}
std::string Print(const core::PinRemoved& e) {
  return absl::StrCat("remove pin space ", e.space.value, " of ", e.pin.owner, " ", Show(e.pin.key), " ", e.pin.asked);
}
std::string Print(const core::HintAsked& e) {
  return absl::StrCat("hint session ", e.session.value, " ", Show(e.keys), e.hint.session_ended ? " ended" : "", " reuse ",
                      static_cast<int>(e.hint.expected_reuse), " stop ", static_cast<int>(e.hint.stop_reason));
}
std::string Print(const core::AllocateAsked& e) {
  return absl::StrCat("allocate session ", e.session.value, " tag ", e.tag.value, " group ", e.group.value, " chunks ",
                      e.chunks);
}
std::string Print(const core::FreeAsked& e) {
  return absl::StrCat("free session ", e.session.value, " allocation ", Show(e.allocation));
}
std::string Print(const core::SwapAsked& e) {
  return absl::StrCat(e.direction == core::Direction::kLoad ? "swap in" : "swap out", " session ", e.session.value, " tag ",
                      e.tag.value, " allocation ", Show(e.allocation), " group ", e.group.value, " first ", e.first,
                      " count ", e.count, " layers ", e.first_layer, "+", e.layers);
}
std::string Print(const core::CancelAsked& e) { return absl::StrCat("give up op ", Show(e.op)); }
std::string Print(const core::CopyFinished& e) { return absl::StrCat("quiet op ", Show(e.op), " ", e.status.ToString()); }
std::string Print(const core::ClearAsked& e) {
  return absl::StrCat("clear job ", e.job.value, e.space.has_value() ? absl::StrCat(" space ", e.space->value) : " all");
}
std::string Print(const core::PromptClearAsked& e) {
  return absl::StrCat("clear job ", e.job.value, " space ", e.space.value, " ", Show(e.keys));
}
std::string Print(const core::MoveAsked& e) {
  return absl::StrCat("move job ", e.job.value, " space ", e.space.value, " ", Show(e.keys),
                      e.to == core::Tier::kDram ? " to DRAM" : " to disk", e.keep_source ? ", keeping the source" : "");
}
std::string Print(const core::JobCancelAsked& e) { return absl::StrCat("cancel job ", e.job.value); }
std::string Print(const core::SlotsCopied&) { return "slots are copied"; }
std::string Print(const core::Tick& e) { return absl::StrCat("tick ", absl::ToUnixMillis(e.now), " ms"); }
std::string Print(const core::Effect& e) { return std::visit(Printer{}, e); }

}  // namespace kvist::sim
