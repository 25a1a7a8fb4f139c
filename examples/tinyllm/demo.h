#ifndef KVIST_EXAMPLES_TINYLLM_DEMO_H_
#define KVIST_EXAMPLES_TINYLLM_DEMO_H_

#include <filesystem>
#include <string>
#include <vector>

#include "examples/tinyllm/documents.h"
#include "examples/tinyllm/engine.h"
#include "examples/tinyllm/workload.h"

namespace tinyllm {

// How a demonstration ends.
enum class DemoResult {
  kEqual = 0,          // all logits are bit for bit those of the reference
  kError = 1,          // it could not be run; stderr says why
  kDiffers = 2,        // some are not: what a run with a corrupted page must end with
  kNothingLoaded = 3,  // nothing was loaded where there should have been something: the run proves nothing
  kColdLoaded = 4,     // something was loaded where everything should have been computed: the reference is none
};

struct DemoOptions {
  // Each runs the whole workload once, in a phase of this name. The engine forgets its own pages before each. All are
  // compared with the first, or with --logits-compare. Named by IsPhaseName. Those not named "cold" must load something from kvist if there is
  // one, and those named so nothing: by them it is known what is computed.
  std::vector<std::string> phases = {"cold", "warm"};
  std::vector<std::filesystem::path> directories = {"/usr/share/common-licenses"};
  DocumentOptions documents;
  WorkloadOptions workload;
  ModelConfig model;
  Engine::Options engine;
  std::string logits_out;         // file to write; none if empty
  std::string prompt_out;         // the same, of the first document's token ids as text, for `kvistctl lookup`
  std::string logits_compare;     // file to compare with; none if empty
  bool flush = false;             // at the end waits until what was stored would survive kvistd
  bool corrupt_one_page = false;  // flips a bit in one page of the last phase's loads: the negative control
};

// Runs it and prints, on stdout, a line for each request and a table of times to first token.
DemoResult RunDemo(const DemoOptions& options);

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_DEMO_H_
