#ifndef KVIST_EXAMPLES_TINYLLM_WORKLOAD_H_
#define KVIST_EXAMPLES_TINYLLM_WORKLOAD_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/tinyllm/documents.h"
#include "examples/tinyllm/engine.h"

namespace tinyllm {

// What the demonstration asks. Two readers of each document ask at once, in several rounds, each with all that was said
// before (so they share the document, and each its own past); beside them a chat without a document grows in the same way.
// Deterministic, as the answers are.
struct WorkloadOptions {
  int rounds = 3;          // at most 4: there are so many questions
  int answer_tokens = 24;  // of each answer
};

struct NamedAnswer {
  std::string name;  // document, reader and round: the same in every run
  Answer answer;
};

// Runs it; the answers are in order of rounds, documents and readers. Errors: those of Engine::Submit (a prompt that is too
// long).
absl::StatusOr<std::vector<NamedAnswer>> RunWorkload(Engine& engine, std::span<const Document> documents,
                                                     const WorkloadOptions& options);

// The first prompts on the first document: what they all begin with, then each reader's.
std::vector<std::vector<Token>> FirstPrompts(std::span<const Document> documents);

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_WORKLOAD_H_
