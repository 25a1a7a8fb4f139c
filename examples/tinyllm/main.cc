// tinyllm: a small inference engine that keeps its KV cache in kvistd. See README.md.

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/command_line.h"
#include "examples/tinyllm/demo.h"

namespace {

using examples::WholeNumber;

constexpr uint64_t kContextMax = tinyllm::ModelConfig{}.context_max;  // no prompt can be longer
constexpr uint64_t kKvTokensMax = 1 << 24;                            // 96 GiB: all memory of the largest GPUs
constexpr uint64_t kDocumentsMax = 1000, kThreadsMax = 1024;          // more than is of use

// What CLI11 says is wrong, and which word is where a command should be.
std::string WrongUsage(const CLI::App* app, const CLI::Error& error) {
  std::string what = error.what();
  if (app->get_subcommands().empty()) {
    const std::vector<std::string> words = app->remaining();
    what = absl::StrCat(words.empty() ? "a command is missing" : absl::StrCat(words[0], ": no such command or option"),
                        "; there is: demo");
  }
  return absl::StrCat("tinyllm: ", what, "\nRun with --help for more information.\n");
}

int Main(int argc, char** argv) {
  tinyllm::DemoOptions options;
  tinyllm::KvistCache::Options kvist;
  bool without_kvist = false;

  CLI::App app{"A small LLM inference engine that keeps its KV cache in kvistd"};
  app.require_subcommand(1);
  app.failure_message(&WrongUsage);
  CLI::App* demo = app.add_subcommand(
      "demo", "Chats and questions over real documents: time to first token, and whether the logits are equal bit for bit");
  demo->footer(
      "Exit status: 0 all logits equal the reference bit for bit; 1 wrong usage, or could not run; 2 some differ (as they\n"
      "must with --corrupt-one-page); 3 nothing was loaded from kvist where something should have been; 4 something was\n"
      "loaded in a phase named cold.");
  demo->add_option("--socket", kvist.socket, "kvistd's engine socket; default $KVIST_SOCKET, else /run/kvist/engine.sock");
  demo->add_option("--instance", kvist.instance, "Name of this engine for kvistd")->capture_default_str();
  demo->add_flag("--without-kvist", without_kvist, "Keep to itself");
  demo->add_option("--documents", options.directories, "Directories with text files to read")->capture_default_str();
  demo->add_option("--document-count", options.documents.count, "Documents to read, at most")
      ->transform(WholeNumber(1, kDocumentsMax))
      ->capture_default_str();
  demo->add_option("--document-bytes", options.documents.bytes_max,
                   "Bytes of a document, which is cut there; a byte is a token")
      ->transform(WholeNumber(options.documents.bytes_min, kContextMax))  // of shorter ones none would be read
      ->capture_default_str();
  demo->add_option("--rounds", options.workload.rounds, "Questions in a conversation")
      ->transform(WholeNumber(1, 4))
      ->capture_default_str();
  demo->add_option("--answer-tokens", options.workload.answer_tokens, "Tokens of an answer")
      ->transform(WholeNumber(1, 1000))
      ->capture_default_str();
  std::string device = "cpu";
  demo->add_option("--device", device, "Where the pages lie: in this process's memory, or on the first GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  demo->add_option("--kv-tokens", options.engine.kv_tokens, "Tokens for which there is KV memory")
      ->transform(WholeNumber(tinyllm::kPageTokens, kKvTokensMax))
      ->capture_default_str();
  demo->add_option("--batch-tokens", options.engine.batch_tokens, "Tokens of prompts in one step")
      ->transform(WholeNumber(1, kContextMax))
      ->capture_default_str();
  demo->add_option("--threads", options.engine.threads, "Threads; 0 is one for each core")
      ->transform(WholeNumber(0, kThreadsMax))
      ->capture_default_str();
  demo->add_option("--phase,--phases", options.phases,
                   "Names of the phases, each the whole workload after the engine has forgotten its pages: cold, warm, "
                   "restart. All but \"cold\" must load "
                   "something from kvist")
      ->delimiter(',')
      ->capture_default_str();
  demo->add_option(
      "--prompt-out", options.prompt_out,
      "File for the token ids that all prompts on the first document begin with; FILE.1, FILE.2: the first of each reader");
  demo->add_option("--logits-out", options.logits_out, "File for the raw logits and times to first token");
  demo->add_option("--logits-compare", options.logits_compare, "Compare with such a file instead of with the first phase");
  demo->add_flag("--flush", options.flush, "At the end wait until what was stored is on kvistd's SSD");
  demo->add_flag("--corrupt-one-page", options.corrupt_one_page,
                 "Negative control: spoil one loaded page in the last phase; the exit status must be 2");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11 has no other way
    return static_cast<int>(app.exit(error) == 0 ? tinyllm::DemoResult::kEqual : tinyllm::DemoResult::kError);
  }

  kvist.on_gpu = device == "cuda";
  if (!without_kvist) options.engine.kvist = kvist;
  return static_cast<int>(tinyllm::RunDemo(options));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const std::exception& error) {  // of the standard library: memory, mostly
    std::fprintf(stderr, "tinyllm: %s\n", error.what());
    return static_cast<int>(tinyllm::DemoResult::kError);
  }
}
