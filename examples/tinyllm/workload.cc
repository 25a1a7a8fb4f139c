#include "examples/tinyllm/workload.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace tinyllm {
namespace {

constexpr int kReaders = 2;

constexpr std::string_view kInstructions =
    "You answer questions briefly. You say what you know, you say when you don't, and you don't make things up. "
    "If a question has several readings, choose the most likely one and name it. Answer in the language of the question.\n";

// By reader, then round.
constexpr std::array<std::array<std::string_view, 4>, kReaders> kQuestions = {{
    {"\n\nQuestion: What is this text about?\nAnswer: ", "\n\nQuestion: Who wrote it, and for whom?\nAnswer: ",
     "\n\nQuestion: What must its reader do?\nAnswer: ", "\n\nQuestion: Say all of it in one sentence.\nAnswer: "},
    {"\n\nQuestion: Which words does the text define?\nAnswer: ", "\n\nQuestion: Which of them matter most?\nAnswer: ",
     "\n\nQuestion: What does it leave open?\nAnswer: ", "\n\nQuestion: What would you ask its author?\nAnswer: "},
}};

struct Conversation {
  std::string name;
  size_t reader;
  std::vector<Token> tokens;  // all that was said
  RequestId asked = 0;
};

std::vector<Conversation> Start(std::span<const Document> documents) {
  std::vector<Conversation> conversations;
  const auto start = [&](std::string name, size_t reader, std::string_view text) {
    Conversation& conversation = conversations.emplace_back(Conversation{std::move(name), reader, {kBeginOfText}});
    AppendTokens(kInstructions, conversation.tokens);
    AppendTokens(text, conversation.tokens);
  };
  for (const Document& document : documents) {
    for (size_t reader = 0; reader < kReaders; ++reader)
      start(absl::StrCat(document.name, ", reader ", reader + 1), reader, document.text);
  }
  start("chat", 0, "We talk about whatever comes up.");
  return conversations;
}

}  // namespace

absl::StatusOr<std::vector<NamedAnswer>> RunWorkload(Engine& engine, std::span<const Document> documents,
                                                     const WorkloadOptions& options) {
  std::vector<NamedAnswer> answers;
  std::vector<Conversation> conversations = Start(documents);
  for (size_t round = 0; round < static_cast<size_t>(options.rounds); ++round) {
    for (Conversation& conversation : conversations) {
      AppendTokens(kQuestions[conversation.reader][round], conversation.tokens);
      absl::StatusOr<RequestId> id = engine.Submit(conversation.tokens, options.answer_tokens);
      if (!id.ok()) return id.status();
      conversation.asked = *id;
    }
    std::vector<Answer> ended = engine.Run();
    for (Conversation& conversation : conversations) {
      Answer& answer = *std::ranges::find(ended, conversation.asked, &Answer::id);
      conversation.tokens.insert(conversation.tokens.end(), answer.tokens.begin(), answer.tokens.end());
      answers.push_back({absl::StrCat(conversation.name, ", question ", round + 1), std::move(answer)});
    }
  }
  return answers;
}

std::vector<std::vector<Token>> FirstPrompts(std::span<const Document> documents) {
  std::vector<Conversation> conversations = Start(documents);
  std::vector<std::vector<Token>> prompts{conversations.front().tokens};
  for (size_t reader = 0; reader < kReaders; ++reader) {
    AppendTokens(kQuestions[reader][0], conversations[reader].tokens);
    prompts.push_back(conversations[reader].tokens);
  }
  return prompts;
}

}  // namespace tinyllm
