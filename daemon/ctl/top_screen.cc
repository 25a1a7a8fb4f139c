#include "daemon/ctl/top_screen.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "daemon/ctl/human.h"
#include "daemon/ctl/table.h"
#include "daemon/ctl/wrap.h"

namespace kvist::ctl {
namespace {

constexpr size_t kBarMax = 40;
constexpr size_t kLabel = 10;  // the words before a bar
constexpr size_t kWords = 40;  // and those behind it; all bars are of one length

// What a figure takes at most as a rule, so that columns stand still from look to look.
constexpr size_t kCountWidth = 7;  // 999,999
constexpr size_t kTimeWidth = 7;   // 99.9 us
constexpr size_t kRateWidth = 9;   // 99.9 MB/s
constexpr size_t kSizeWidth = 8;   // 99.9 GiB
constexpr size_t kShareWidth = 5;  // 100 %

constexpr char kBold[] = "\033[1m", kDim[] = "\033[2m", kReverse[] = "\033[7m", kGreen[] = "\033[32m",
               kYellow[] = "\033[33m", kRed[] = "\033[31m", kPlain[] = "\033[0m";

std::string Number(double per_second) {
  return per_second > 0 && per_second < 9.95 ? absl::StrFormat("%.1f", per_second)
                                             : HumanCount(static_cast<uint64_t>(std::llround(per_second)));
}

std::string Rate(double bytes) { return bytes == 0 ? "-" : HumanRate(bytes); }
std::string Count(double per_second) { return per_second == 0 ? "-" : Number(per_second); }
std::string HitShare(const TopView::Rates& rates) {
  return rates.chunks_asked == 0 ? "-" : absl::StrFormat("%.0f %%", 100 * rates.chunks_hit / rates.chunks_asked);
}

// The hooks that have a row: each engine's, and others once somebody has called them.
std::vector<TopView::Latency> ShownHooks(const TopView& view) {
  std::vector<TopView::Latency> shown;
  for (const TopView::Latency& hook : view.latencies) {
    if (hook.count > 0 || hook.name == "lookup" || hook.name == "load" || hook.name == "store") shown.push_back(hook);
  }
  return shown;
}
size_t RequestRows(const TopView& view) { return std::max(ShownHooks(view).size(), view.waits.size()); }

class Screen {
 public:
  explicit Screen(const TopScreenOptions& options) : options_(options) {}

  void Line(const std::string& text, const char* style = "") {
    lines_.push_back(Styled(Cut(text, options_.columns), style));
  }

  // Words at both ends of a line; those to the right only if there is room.
  void Title(const std::string& left, const std::string& right) {
    const size_t taken = Width(left) + Width(right);
    if (taken + 2 > options_.columns) return Line(left, kBold);
    lines_.push_back(absl::StrCat(Styled(left, kBold), std::string(options_.columns - taken, ' '), Styled(right, kDim)));
  }

  // A text on as many lines as it takes.
  void Wrapped(const std::string& text, const char* style) {
    for (const absl::string_view line : absl::StrSplit(Wrap(text, options_.columns, 0), '\n'))
      Line(std::string(line), style);
  }

  // "pool      ██████░░░░  60.0 %   2.4 GiB of 4 GiB"
  void Bar(const std::string& label, double share, const char* colour, const std::string& words) {
    const std::string number = std::isnan(share) ? "     - " : absl::StrFormat("%5.1f %%", 100 * share);
    constexpr size_t kTaken = kLabel + 2 + 7 + 3 + kWords;
    const size_t width = std::clamp<size_t>(options_.columns > kTaken ? options_.columns - kTaken : 0, 8, kBarMax);
    const double filled_share = std::isnan(share) ? 0 : std::clamp(share, 0.0, 1.0);
    const auto filled = static_cast<size_t>(std::lround(filled_share * static_cast<double>(width)));
    std::string full, empty;
    for (size_t i = 0; i < width; ++i) (i < filled ? full : empty) += i < filled ? "\u2588" : "\u2591";
    const std::string left = absl::StrFormat("%-*s", kLabel, label);
    const std::string right = Cut(absl::StrCat("  ", number, "   ", words),
                                  options_.columns > kLabel + width ? options_.columns - kLabel - width : 0);
    lines_.push_back(absl::StrCat(left, Styled(full, colour), Styled(empty, kDim), right));
  }

  // A table of at most `rows_max` rows below its titles, of `rows` that there are.
  void Rows(const Table& table, size_t rows, size_t rows_max, const char* noun) {
    std::vector<std::string> lines = absl::StrSplit(table.Render(options_.columns), '\n', absl::SkipEmpty());
    // One row less, so that the words have a place.
    const size_t shown = rows <= rows_max ? rows : rows_max > 0 ? rows_max - 1 : 0;
    std::string titles = lines[0];
    if (options_.colours && Width(titles) < options_.columns) titles.append(options_.columns - Width(titles), ' ');
    lines_.push_back(Styled(titles, kReverse));
    for (size_t i = 1; i <= shown; ++i) lines_.push_back(lines[i]);
    if (shown < rows) Line(absl::StrCat("\u2026 and ", rows - shown, " more ", noun), kDim);
  }

  size_t size() const { return lines_.size(); }
  std::string Text() const {
    std::string text;
    for (size_t i = 0; i < std::min(lines_.size(), options_.rows); ++i) absl::StrAppend(&text, lines_[i], "\n");
    return text;
  }

 private:
  std::string Styled(const std::string& text, const char* style) const {
    return !options_.colours || *style == '\0' || text.empty() ? text : absl::StrCat(style, text, kPlain);
  }

  const TopScreenOptions& options_;
  std::vector<std::string> lines_;
};

// Hooks, and beside them the queues that their requests have waited in: two lists that share lines.
Table RequestTable(const TopView& view) {
  Table table({{"HOOK"},
               {"PER S", kRight, 0, kCountWidth},
               {"THROUGHPUT", kRight, 1},
               {"P50", kRight, 0, kTimeWidth},
               {"P99", kRight, 0, kTimeWidth},
               {"QUEUE", Table::Align::kLeft, 2},
               {"WAIT P50", kRight, 4},
               {"WAIT P99", kRight, 3}});
  const auto shown = [](double seconds) { return seconds == 0 ? std::string("-") : HumanLatency(seconds); };
  const std::vector<TopView::Latency> hooks = ShownHooks(view);
  for (size_t i = 0; i < RequestRows(view); ++i) {
    std::vector<std::string> row;
    if (i < hooks.size()) {
      const TopView::Latency& hook = hooks[i];
      const std::string moved = hook.name == "load"    ? Rate(view.rates.bytes_loaded)
                                : hook.name == "store" ? Rate(view.rates.bytes_stored)
                                                       : "";
      row = {hook.name, Count(hook.per_second), moved, shown(hook.p50_seconds), shown(hook.p99_seconds)};
    }
    row.resize(5);
    if (i < view.waits.size()) {
      const TopView::Latency& queue = view.waits[i];
      row.insert(row.end(), {queue.name, shown(queue.p50_seconds), shown(queue.p99_seconds)});
    }
    row.resize(8);
    table.Add(std::move(row));
  }
  return table;
}

Table SpaceTable(const TopView& view) {
  Table table({{"SPACE"},
               {"TENANT", Table::Align::kLeft, 3},
               {"MODEL"},
               {"CHUNKS", kRight, 4},
               {"BYTES", kRight, 1, kSizeWidth},
               {"OF POOL", kRight, 5},
               {"LOOKUPS/S", kRight},
               {"HIT", kRight, 0, kShareWidth},
               {"LOADS", kRight, 0, kRateWidth},
               {"STORES", kRight, 0, kRateWidth}});
  for (const TopView::SpaceRow& row : view.spaces) {
    table.Add({row.space.digest().substr(0, 8), row.space.tenant(), row.space.model(), HumanCount(row.space.chunks()),
               HumanBytes({row.space.bytes()}), HumanShare(row.space.bytes(), view.now.pool().capacity_bytes()),
               Count(row.rates.lookups), HitShare(row.rates), Rate(row.rates.bytes_loaded), Rate(row.rates.bytes_stored)});
  }
  return table;
}

Table SessionTable(const TopView& view) {
  Table table({{"SESSION", kRight},
               {"INSTANCE"},
               {"ROLE"},
               {"TENANT", Table::Align::kLeft, 4},
               {"PID", kRight, 3},
               {"COPIES", kRight, 5},
               {"LOOKUPS/S", kRight},
               {"HIT", kRight, 0, kShareWidth},
               {"LOADS", kRight, 0, kRateWidth},
               {"STORES", kRight, 0, kRateWidth},
               {"ERRORS/S", kRight, 2}});
  for (const TopView::SessionRow& row : view.sessions) {
    const std::string role =
        row.session.role() == "worker" ? absl::StrCat("worker ", row.session.rank()) : row.session.role();
    table.Add({absl::StrCat(row.session.id()), row.session.instance(), role, row.session.tenant(),
               absl::StrCat(row.session.pid()), HumanCount(row.session.ops()), Count(row.rates.lookups), HitShare(row.rates),
               Rate(row.rates.bytes_loaded), Rate(row.rates.bytes_stored), Count(row.rates.failed)});
  }
  return table;
}

std::string Plural(uint64_t count, const char* noun) {
  return absl::StrCat(HumanCount(count), " ", noun, count == 1 ? "" : "s");
}

}  // namespace

std::string DrawTop(const TopView& view, const TopScreenOptions& options) {
  Screen screen(options);
  const node::v1::StatusReply& now = view.now;
  const auto used = static_cast<double>(now.pool().used_bytes());
  const auto capacity = static_cast<double>(now.pool().capacity_bytes());
  const double full = capacity == 0 ? NAN : used / capacity;
  const double hit = view.rates.chunks_asked == 0 ? NAN : view.rates.chunks_hit / view.rates.chunks_asked;

  screen.Title(absl::StrCat("kvistd ", Printable(now.version()), "  pid ", now.pid(), "  up ",
                            HumanDuration(absl::Seconds(now.uptime_seconds()))),
               absl::StrCat("the last ", HumanLatency(view.seconds), options.live ? "   ^C ends" : ""));
  if (!options.trouble.empty()) screen.Wrapped(absl::StrCat("nothing newer: ", Printable(options.trouble)), kRed);
  screen.Line("");
  // A full pool is how a cache should be; only what is evicted all the time is worth a colour.
  screen.Bar("pool", full, view.evictions > 0 ? kYellow : kGreen,
             absl::StrCat(HumanBytes({now.pool().used_bytes()}), " of ", HumanBytes({now.pool().capacity_bytes()}),
                          view.evictions > 0 ? absl::StrCat(", ", Number(view.evictions), " evictions/s") : ""));
  if (const node::v1::SsdTier& ssd = now.ssd(); !ssd.state().empty() && ssd.state() != "off") {
    screen.Bar(
        "ssd",
        ssd.capacity_bytes() == 0 ? NAN : static_cast<double>(ssd.live_bytes()) / static_cast<double>(ssd.capacity_bytes()),
        ssd.trouble().empty() ? kGreen : kRed,
        absl::StrCat(HumanBytes({ssd.live_bytes()}), " of ", HumanBytes({ssd.capacity_bytes()}),
                     ssd.state() == "on" ? "" : absl::StrCat(", ", Printable(ssd.state()))));
  }
  screen.Bar("hit rate", hit, kGreen,
             view.rates.chunks_asked == 0
                 ? "nobody asks"
                 : absl::StrCat(Number(view.rates.chunks_hit), " of ", Number(view.rates.chunks_asked), " chunks/s"));
  screen.Line("");
  screen.Rows(RequestTable(view), RequestRows(view), SIZE_MAX, "hooks");
  screen.Line("");
  screen.Line(absl::StrCat(Plural(now.instances(), "instance"), ", ", Plural(now.sessions(), "session"), ", ",
                           Plural(now.leases(), "lease"), ", ",
                           now.ops() == 1 ? "1 copy" : HumanCount(now.ops()) + " copies", " in flight"));
  if (view.rates.failed > 0) screen.Line(absl::StrCat(Number(view.rates.failed), " requests/s fail"), kRed);

  // Spaces get at most half of what is left, sessions the rest.
  const size_t left = options.rows == SIZE_MAX           ? SIZE_MAX
                      : options.rows > screen.size() + 4 ? options.rows - screen.size() - 4
                                                         : 0;
  if (left == 0) return screen.Text();
  const size_t space_rows = std::min(view.spaces.size(), left == SIZE_MAX ? left : std::max<size_t>(1, left / 2));
  if (view.spaces.empty()) {
    screen.Line("");
    screen.Line("no spaces: no engine has connected since the start", kDim);
    return screen.Text();
  }
  screen.Line("");
  screen.Rows(SpaceTable(view), view.spaces.size(), space_rows, "spaces");
  screen.Line("");
  if (view.sessions.empty()) {
    screen.Line("no sessions: no engine is connected", kDim);
  } else {
    screen.Rows(SessionTable(view), view.sessions.size(), left == SIZE_MAX ? left : left - space_rows, "sessions");
  }
  return screen.Text();
}

}  // namespace kvist::ctl
