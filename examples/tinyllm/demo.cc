#include "examples/tinyllm/demo.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/tinyllm/record.h"

namespace tinyllm {
namespace {

constexpr int kNameWidth = 44;
constexpr absl::Duration kFlushTime = absl::Seconds(60);  // some hundred MiB, on a slow disk

DemoResult Fail(const absl::Status& status) {
  absl::FPrintF(stderr, "tinyllm: %s\n", status.message());
  return DemoResult::kError;
}

const char* VerdictOf(DemoResult result) {
  switch (result) {
    case DemoResult::kEqual: return "bit for bit equal";
    case DemoResult::kDiffers: return "DIFFERS";
    case DemoResult::kNothingLoaded: return "nothing was loaded from kvist, so nothing is proved";
    case DemoResult::kColdLoaded:
      return "kvist had KV of this model already, so the cold answers aren't computed alone: use a kvistd that has none";
    case DemoResult::kError: break;
  }
  return "could not be run";
}

// Of phases that could not be told apart in a record: the next process would refuse it, when all is computed.
absl::Status CheckPhases(const std::vector<std::string>& phases, const Record& reference) {
  for (const std::string& phase : phases) {
    if (!IsPhaseName(phase)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--phases: \"", phase, "\" is no name; allowed: letters, digits, _ and -, with commas between names"));
    }
  }
  const size_t before = reference.entries.empty() ? 0 : reference.entries.front().phases.size();
  if (before + phases.size() > Record::kPhasesMax) {
    return absl::InvalidArgumentError(absl::StrCat("--phases: ", phases.size(), " of them, after ", before,
                                                   " in the file of --logits-compare; allowed: ", Record::kPhasesMax,
                                                   " in all"));
  }
  return absl::OkStatus();
}

// The negative control: spoils one page of the engine's own memory right after a load has filled it.
class Corruption {
 public:
  void Arm() { armed_ = true; }
  bool done() const { return done_; }

  void Visit(const PagedMemory& memory, std::span<const PageId> pages) {
    if (!std::exchange(armed_, false)) return;
    const PageId page = pages[pages.size() / 2];
    *memory.Value(0, page, kPageTokens / 2) ^= 0x8000;
    done_ = true;
    absl::PrintF("corrupted on purpose: the sign of one value of one loaded page (page %u of the engine)\n", page);
  }

 private:
  bool armed_ = false;
  bool done_ = false;
};

// Adds a phase to the record; its first phase is the reference. Prints a line for each answer.
DemoResult Compare(const std::string& phase, const std::vector<NamedAnswer>& answers, Record& record) {
  absl::PrintF("\n%s\n%-*s %7s %7s %7s %7s %10s  %-16s  %s\n", phase, kNameWidth, "request", "prompt", "local", "kvist",
               "ssd", "TTFT ms", "logits", "compared with the reference");
  const bool is_reference = record.entries.empty();
  bool all_equal = is_reference || record.entries.size() == answers.size();
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto& [name, answer] = answers[i];
    const double first_token_ms = absl::ToDoubleMilliseconds(answer.time_to_first_token);
    const char* verdict = "is the reference";
    if (is_reference) {
      record.entries.push_back({name, {}, answer.logits});
    } else {
      const bool equal =
          i < record.entries.size() && record.entries[i].name == name && SameBits(record.entries[i].logits, answer.logits);
      verdict = equal ? "bit for bit equal" : "DIFFERS";
      all_equal = all_equal && equal;
    }
    if (i < record.entries.size()) record.entries[i].phases.push_back({phase, first_token_ms});
    absl::PrintF("%-*s %7d %7d %7d %7d %10.1f  %016x  %s\n", kNameWidth, name, answer.prompt_tokens, answer.local_tokens,
                 answer.kvist_tokens, answer.ssd_tokens, first_token_ms, DigestOf(answer.logits), verdict);
  }
  return all_equal ? DemoResult::kEqual : DemoResult::kDiffers;
}

// Time to first token, a request a row and a phase a column.
void PrintTimes(const Record& record) {
  if (record.entries.empty()) return;
  absl::PrintF("\ntime to first token, ms\n%-*s", kNameWidth, "request");
  for (const Record::Phase& phase : record.entries.front().phases) absl::PrintF(" %10s", phase.name);
  std::vector<double> sums(record.entries.front().phases.size());
  for (const Record::Entry& entry : record.entries) {
    absl::PrintF("\n%-*s", kNameWidth, entry.name);
    for (size_t i = 0; i < std::min(sums.size(), entry.phases.size()); ++i) {
      absl::PrintF(" %10.1f", entry.phases[i].first_token_ms);
      sums[i] += entry.phases[i].first_token_ms;
    }
  }
  absl::PrintF("\n%-*s", kNameWidth, "mean");
  for (const double sum : sums) absl::PrintF(" %10.1f", sum / static_cast<double>(record.entries.size()));
  absl::PrintF("\n");
}

void PrintSummary(Engine& engine) {
  const Engine::Stats& stats = engine.stats();
  absl::PrintF(
      "\ncomputed %d tokens of prompts and %d of answers in %d steps, %.2f s; %d preemptions; %d bytes of KV a token\n",
      stats.prompt_tokens_computed, stats.answer_tokens_computed, stats.steps, absl::ToDoubleSeconds(stats.computing),
      stats.preemptions, engine.model().config().kv_bytes_per_token());
  if (engine.kvist() == nullptr) return;
  const KvistCache::Stats& kvist = engine.kvist()->stats();
  absl::PrintF("kvist: %d lookups, %d chunks loaded (%d loads failed), %d chunks stored, %d there already, %d refused\n",
               kvist.lookups, kvist.chunks_loaded, kvist.loads_failed, kvist.chunks_stored, kvist.chunks_skipped,
               kvist.chunks_refused);
}

}  // namespace

DemoResult RunDemo(const DemoOptions& options) {
  const std::vector<Document> documents = ReadDocuments(options.directories, options.documents);
  if (documents.empty()) return Fail(absl::NotFoundError("no text file to read below the directories of --documents"));
  if (!options.prompt_out.empty()) {
    const std::vector<std::vector<Token>> prompts = FirstPrompts(documents);
    for (size_t p = 0; p < prompts.size(); ++p) {
      const std::string path = p == 0 ? options.prompt_out : absl::StrCat(options.prompt_out, ".", p);
      std::ofstream file(path);
      for (const Token token : prompts[p]) file << token << '\n';
      if (!file.flush()) return Fail(absl::UnavailableError(absl::StrCat("can't write ", path)));
    }
  }
  Record record;
  if (!options.logits_compare.empty()) {
    absl::StatusOr<Record> reference = ReadRecord(options.logits_compare);
    if (!reference.ok()) return Fail(reference.status());
    if (reference->revision != options.model.Revision())
      return Fail(absl::InvalidArgumentError("the logits to compare with are another model's"));
    record = *std::move(reference);
  }
  record.revision = options.model.Revision();
  if (absl::Status status = CheckPhases(options.phases, record); !status.ok()) return Fail(status);

  Corruption corruption;
  Engine::Options engine_options = options.engine;
  engine_options.on_loaded = [&](const PagedMemory& memory, std::span<const PageId> pages) {
    corruption.Visit(memory, pages);
  };
  absl::StatusOr<std::shared_ptr<const Model>> model = Model::Create(options.model);
  if (!model.ok()) return Fail(model.status());
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(*model, engine_options);
  if (!engine.ok()) return Fail(engine.status());
  KvistCache* kvist = (*engine)->kvist();
  if (kvist != nullptr && !kvist->WaitConnected(absl::Seconds(5)))
    absl::PrintF("kvistd is away: everything is computed until it comes\n");

  DemoResult result = DemoResult::kEqual;
  for (const std::string& phase : options.phases) {
    (*engine)->ForgetLocalPages();
    if (options.corrupt_one_page && &phase == &options.phases.back()) corruption.Arm();
    absl::StatusOr<std::vector<NamedAnswer>> answers = RunWorkload(**engine, documents, options.workload);
    if (!answers.ok()) {  // a prompt that is too long
      return Fail(absl::InvalidArgumentError(absl::StrCat(
          answers.status().message(), "; lower --document-bytes, --rounds or --answer-tokens, or raise --kv-tokens")));
    }
    const bool loaded = std::ranges::any_of(*answers, [](const NamedAnswer& a) { return a.answer.kvist_tokens > 0; });
    if (kvist != nullptr && phase != "cold" && !loaded && result == DemoResult::kEqual) result = DemoResult::kNothingLoaded;
    if (phase == "cold" && loaded && result == DemoResult::kEqual) result = DemoResult::kColdLoaded;
    if (Compare(phase, *answers, record) == DemoResult::kDiffers) result = DemoResult::kDiffers;
  }
  (*engine)->ForgetLocalPages();  // ends the stores: the next process finds them
  if (options.flush && kvist != nullptr) {
    const absl::StatusOr<uint32_t> durable = kvist->MakeDurable(kFlushTime);
    if (!durable.ok()) return Fail(durable.status());
    absl::PrintF("\nflushed: %d chunks survive kvistd\n", *durable);
  }
  PrintTimes(record);
  PrintSummary(**engine);

  if (options.corrupt_one_page && !corruption.done()) result = DemoResult::kNothingLoaded;
  if (!options.logits_out.empty()) {
    if (absl::Status status = WriteRecord(record, options.logits_out); !status.ok()) return Fail(status);
  }
  absl::PrintF("verdict: %s\n", VerdictOf(result));
  return result;
}

}  // namespace tinyllm
