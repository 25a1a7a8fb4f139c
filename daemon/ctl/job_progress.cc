#include "daemon/ctl/job_progress.h"

#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/ctl/human.h"
#include "daemon/ctl/table.h"

namespace kvist::ctl {

double ShareDone(const node::v1::Job& job) {
  if (job.total() == 0) return job.state() == "running" ? 0 : 1;
  return std::min(1.0, static_cast<double>(job.done()) / static_cast<double>(job.total()));
}

std::string Achieved(const node::v1::Job& job) {
  const bool clears = job.kind() == "clear" || job.kind() == "clear-prompt";
  const bool moves = job.kind() == "move" || job.kind() == "prefetch";
  return absl::StrCat(clears  ? "freed "
                      : moves ? "moved "
                              : "did ",
                      HumanCount(job.chunks()), job.chunks() == 1 ? " chunk" : " chunks");
}

std::string PaceOf(const node::v1::Job& job) {
  std::string text;
  if (job.state() != "running") return text;
  if (job.bytes() > 0) absl::StrAppend(&text, ", ", HumanBytes({job.bytes()}), " at ", HumanRate(job.bytes_per_second()));
  if (job.seconds_left() > 0) absl::StrAppend(&text, ", ", HumanDuration(absl::Seconds(job.seconds_left())), " left");
  return text;
}

std::string StateOf(const node::v1::Job& job) {
  return absl::StrCat(Printable(job.state()), job.resumed() ? ", resumed" : "");
}

JobProgress::JobProgress(const Terminal& terminal)
    : terminal_(terminal), bar_(terminal.size && terminal.size().has_value()) {}

JobProgress::~JobProgress() {
  if (drawn_) terminal_.out << "\r\033[K\033[?25h" << std::flush;
}

void JobProgress::Show(const node::v1::Job& job) {
  if (!bar_ && job.state() != "running") return;
  const std::string waits = job.trouble().empty() ? "" : absl::StrCat("; ", Printable(job.trouble()));
  Show(absl::StrCat("job ", job.id()), job.kind(), ShareDone(job), Achieved(job) + PaceOf(job) + waits);
}

void JobProgress::Show(const std::string& name, const std::string& kind, double share, const std::string& achieved) {
  if (!bar_) {
    const auto tenths = static_cast<uint64_t>(share * 10);
    if (tenths > tenths_) terminal_.out << name << ": " << tenths * 10 << " %, " << achieved << std::endl;
    tenths_ = std::max(tenths_, tenths);
    return;
  }
  constexpr size_t kBarMax = 40;
  const std::string front = absl::StrCat(Printable(kind), " ");
  const std::string back = absl::StrFormat(" %3.0f %%  %s", share * 100, achieved);
  const Terminal::Size size = terminal_.size().value_or(Terminal::Size());
  const size_t room = size.columns > front.size() + back.size() + 3 ? size.columns - front.size() - back.size() - 3 : 0;
  const size_t width = std::min(room, kBarMax), filled = static_cast<size_t>(share * static_cast<double>(width));
  const std::string bar =
      width == 0 ? "" : absl::StrCat("[", std::string(filled, '#'), std::string(width - filled, '.'), "]");
  terminal_.out << "\r" << (drawn_ ? "" : "\033[?25l") << Cut(absl::StrCat(front, bar, back), size.columns) << "\033[K"
                << std::flush;
  drawn_ = true;
}

}  // namespace kvist::ctl
