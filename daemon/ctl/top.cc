#include "daemon/ctl/top.h"

#include <algorithm>
#include <ostream>

#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "daemon/ctl/node_client.h"
#include "daemon/ctl/top_screen.h"
#include "daemon/ctl/top_view.h"
#include "storage/base/status.h"

namespace kvist::ctl {
namespace {

constexpr absl::Duration kFirstLook = absl::Milliseconds(300);  // the first view of a live screen comes so soon

absl::StatusOr<TopSample> Ask(NodeClient& node, absl::Duration timeout) {
  TopSample sample;
  KVIST_ASSIGN_OR_RETURN(sample.status, node.Status(timeout));
  KVIST_ASSIGN_OR_RETURN(sample.sessions, node.Sessions(timeout));
  return sample;
}

// The alternate screen of a terminal, without its cursor, for as long as this lives.
class LiveScreen {
 public:
  explicit LiveScreen(std::ostream& out) : out_(out) { out_ << "\033[?1049h\033[?25l" << std::flush; }
  ~LiveScreen() { out_ << "\033[?25h\033[?1049l" << std::flush; }
  LiveScreen(const LiveScreen&) = delete;
  LiveScreen& operator=(const LiveScreen&) = delete;

  // Over what is there, without clearing it first: that would flicker. The last line ends without a newline, which would scroll.
  void Draw(std::string text) {
    if (!text.empty()) text.pop_back();
    out_ << "\033[H" << absl::StrReplaceAll(text, {{"\n", "\033[K\r\n"}}) << "\033[K\033[J" << std::flush;
  }

 private:
  std::ostream& out_;
};

std::string Draw(const TopView& view, const std::optional<Terminal::Size>& size, bool colours, bool live,
                 std::string trouble = "") {
  TopScreenOptions screen;
  if (size.has_value()) screen.columns = size->columns;
  if (size.has_value() && live) screen.rows = size->rows;
  screen.colours = colours;
  screen.live = live;
  screen.trouble = std::move(trouble);
  return DrawTop(view, screen);
}

}  // namespace

Top::Look Top::TakeLook() const {
  absl::StatusOr<NodeClient> node = NodeClient::Connect(arguments_.target);
  if (!node.ok()) return {false, node.status()};
  return {true, Ask(*node, Timeout(kQuestionTime))};
}

ExitCode Top::FailedBy(const Look& look) const {
  return look.reached ? Fail(look.sample.status(), kQuestionTime) : NotReached(look.sample.status());
}

ExitCode Top::Run() const {
  const Look first = TakeLook();
  if (!first.sample.ok()) return FailedBy(first);
  TopSample before = *first.sample;
  const auto size = [&] { return terminal_.size ? terminal_.size() : std::nullopt; };
  const bool live = !arguments_.once && !json() && HasScreen();
  const absl::Duration interval = arguments_.interval;
  if (!terminal_.wait(live ? std::min(kFirstLook, interval) : interval)) return kOk;

  std::optional<LiveScreen> screen;
  if (live) screen.emplace(terminal_.out);
  TopView view;
  do {
    const Look now = TakeLook();
    if (now.sample.ok()) {
      view = ViewTop(before, *now.sample);
      before = *now.sample;
    }
    if (live) {
      screen->Draw(Draw(view, size(), HasColours(), live, std::string(now.sample.status().message())));
    } else {
      if (!now.sample.ok()) return FailedBy(now);
      terminal_.out << (json() ? ToJson(view) : Draw(view, size(), HasColours(), live)) << std::flush;
    }
  } while (!arguments_.once && terminal_.wait(interval));
  return kOk;
}

}  // namespace kvist::ctl
