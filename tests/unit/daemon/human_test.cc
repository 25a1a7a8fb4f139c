#include "daemon/ctl/human.h"
#include "daemon/ctl/wrap.h"

#include <catch2/catch.hpp>
#include <limits>

#include "daemon/ctl/table.h"

namespace kvist::ctl {
namespace {

TEST_CASE("HumanBytes shows three digits that count") {
  CHECK(HumanBytes({0}) == "0 B");
  CHECK(HumanBytes({1023}) == "1023 B");
  CHECK(HumanBytes(KiB(1)) == "1 KiB");
  CHECK(HumanBytes({1536}) == "1.5 KiB");
  CHECK(HumanBytes(MiB(64)) == "64 MiB");
  CHECK(HumanBytes(MiB(1280)) == "1.25 GiB");
  CHECK(HumanBytes({10'000'000}) == "9.54 MiB");
  CHECK(HumanBytes({100'000'000}) == "95.4 MiB");
  CHECK(HumanBytes({1'000'000'000}) == "954 MiB");
  CHECK(HumanBytes({MiB(1).value - 1}) == "1 MiB");
  CHECK(HumanBytes({std::numeric_limits<uint64_t>::max()}) == "16 EiB");
}

TEST_CASE("HumanRate and HumanLatency show three digits in the unit that fits") {
  CHECK(HumanRate(0) == "0 B/s");
  CHECK(HumanRate(999.4) == "999 B/s");
  CHECK(HumanRate(812'300'000) == "812 MB/s");
  CHECK(HumanRate(999'600'000) == "1 GB/s");
  CHECK(HumanRate(23.14e9) == "23.1 GB/s");
  CHECK(HumanLatency(850e-9) == "850 ns");
  CHECK(HumanLatency(1.25e-6) == "1.25 us");
  CHECK(HumanLatency(0.0341) == "34.1 ms");
  CHECK(HumanLatency(2.1) == "2.1 s");
}

TEST_CASE("HumanCount groups digits by three") {
  CHECK(HumanCount(0) == "0");
  CHECK(HumanCount(999) == "999");
  CHECK(HumanCount(1000) == "1,000");
  CHECK(HumanCount(1234567) == "1,234,567");
}

TEST_CASE("HumanShare knows what a share of nothing is") {
  CHECK(HumanShare(1, 4) == "25.0 %");
  CHECK(HumanShare(0, 4) == "0.0 %");
  CHECK(HumanShare(0, 0) == "-");
}

TEST_CASE("HumanDuration shows two units at most") {
  CHECK(HumanDuration(absl::Milliseconds(340)) == "340 ms");
  CHECK(HumanDuration(absl::Seconds(12.7)) == "12 s");
  CHECK(HumanDuration(absl::Seconds(60)) == "1 min");
  CHECK(HumanDuration(absl::Seconds(200)) == "3 min 20 s");
  CHECK(HumanDuration(absl::Minutes(125)) == "2 h 5 min");
  CHECK(HumanDuration(absl::Hours(24 * 3 + 4)) == "3 d 4 h");
}

TEST_CASE("Table lines up text to the left and numbers to the right") {
  Table table({{"NAME"}, {"N", Table::Align::kRight}, {"LAST"}});
  table.Add({"a", "1", ""});
  table.Add({"m\xc3\xa5lare", "1,000", "x"});
  CHECK(table.Render() ==
        "NAME        N  LAST\n"
        "a           1\n"
        "m\xc3\xa5lare  1,000  x\n");
}

TEST_CASE("Table cuts text, then drops columns, then cuts lines, to fit") {
  Table table({{"NAME"}, {"LESS", Table::Align::kRight, 1}, {"N", Table::Align::kRight}});
  table.Add({"a name that is long", "123", "7"});
  CHECK(table.Render(28) == "NAME                 LESS  N\na name that is long   123  7\n");
  CHECK(table.Render(24) == "NAME             LESS  N\na name that is\u2026   123  7\n");
  CHECK(table.Render(16) == "NAME           N\na name that \u2026  7\n");  // what LESS has left over is the name's
  CHECK(table.Render(6) == "NAME \u2026\na nam\u2026\n");
  CHECK(Cut("m\xc3\xa5lare", 3) == "m\xc3\xa5\u2026");
}

TEST_CASE("Table leaves out a column that says nothing, and keeps one as wide as it shall be") {
  Table table({{"NAME"}, {.title = "NOTE", .if_any = true}, {"N", Table::Align::kRight, 0, 4}});
  table.Add({"a", "", "7"});
  CHECK(table.Render() == "NAME     N\na        7\n");
  table.Add({"b", "odd", "8"});
  CHECK(table.Render() == "NAME  NOTE     N\na              7\nb     odd      8\n");
}

TEST_CASE("WrapHelp breaks lines between words and goes on below the description") {
  const std::string option = "  --socket PATH         Where it is that engines connect, by a path\n";
  CHECK(WrapHelp(option, 200) == option);
  CHECK(WrapHelp(option, 50) ==
        "  --socket PATH         Where it is that engines\n"
        "                        connect, by a path\n");
  CHECK(WrapHelp("exit status: 0 done; 1 refused by the daemon, 2 wrong", 40) ==
        "exit status: 0 done; 1 refused by the\ndaemon, 2 wrong");
  const std::string word(60, 'x');
  CHECK(WrapHelp(word + " y", 40) == word + "\ny");
  CHECK(WrapHelp("  " + word, 40) == "  " + word);
}

TEST_CASE("Table shows no control characters") {
  CHECK(Printable("a\033[2Jb\nc\x7f") == "a?[2Jb?c?");
  CHECK(Printable("a\xc2\x9b"
                  "2Jb") == "a?2Jb");
  CHECK(Printable("\xc2\xb5s") == "\xc2\xb5s");
}

TEST_CASE("ParseBytes reads what people type, and nothing else") {
  CHECK(ParseBytes("4096") == Bytes{4096});
  CHECK(ParseBytes("8GiB") == GiB(8));
  CHECK(ParseBytes("512 MiB") == MiB(512));
  CHECK(ParseBytes("16777215TiB") == Bytes{16777215ull << 40});
  for (const char* wrong : {"", "GiB", "8GB", "8 gib", "-1", "+1", "1.5GiB", "16777216TiB", "18446744073709551616", "1 2"}) {
    INFO(wrong);
    CHECK_FALSE(ParseBytes(wrong).has_value());
  }
}

}  // namespace
}  // namespace kvist::ctl
