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

absl::StatusOr<TopSample> Sample(const TopOptions& options) {
  KVIST_ASSIGN_OR_RETURN(NodeClient node, NodeClient::Connect(options.target));
  TopSample sample;
  KVIST_ASSIGN_OR_RETURN(sample.status, node.Status(options.timeout));
  KVIST_ASSIGN_OR_RETURN(sample.sessions, node.Sessions(options.timeout));
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

std::string Draw(const TopView& view, const std::optional<Terminal::Size>& size, bool live, std::string trouble = "") {
  TopScreenOptions screen;
  if (size.has_value()) screen.columns = size->columns;
  if (size.has_value() && live) screen.rows = size->rows;
  screen.colours = size.has_value();
  screen.live = live;
  screen.trouble = std::move(trouble);
  return DrawTop(view, screen);
}

ExitCode Fail(const absl::Status& why, const Terminal& terminal) {
  terminal.err << "kvistctl: " << why.message() << "\n";
  return kUnavailable;
}

}  // namespace

ExitCode RunTop(const TopOptions& options, const Terminal& terminal) {
  absl::StatusOr<TopSample> before = Sample(options);
  if (!before.ok()) return Fail(before.status(), terminal);
  const auto size = [&] { return terminal.size ? terminal.size() : std::nullopt; };
  const bool live = !options.once && !options.json && size().has_value();
  if (!terminal.wait(live ? std::min(kFirstLook, options.interval) : options.interval)) return kOk;

  std::optional<LiveScreen> screen;
  if (live) screen.emplace(terminal.out);
  TopView view;
  do {
    absl::StatusOr<TopSample> now = Sample(options);
    if (now.ok()) {
      view = ViewTop(*before, *now);
      before = now;
    }
    if (live) {
      screen->Draw(Draw(view, size(), live, now.ok() ? "" : std::string(now.status().message())));
    } else {
      if (!now.ok()) return Fail(now.status(), terminal);
      terminal.out << (options.json ? ToJson(view) : Draw(view, size(), live)) << std::flush;
    }
  } while (!options.once && terminal.wait(options.interval));
  return kOk;
}

}  // namespace kvist::ctl
