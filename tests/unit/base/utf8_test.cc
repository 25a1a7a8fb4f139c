#include "storage/base/utf8.h"

#include <catch2/catch.hpp>
#include <string>

namespace kvist {
namespace {

TEST_CASE("IsUtf8 takes every code point once, and no other bytes") {
  for (const char* right : {"", "plain", "m\xc3\xa5lare", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xf0\x90\x80\x80",
                            "\xf4\x8f\xbf\xbf"}) {
    INFO(right);
    CHECK(IsUtf8(right));
  }
  for (const char* wrong : {"\x80", "\xc0\x80", "\xc1\xbf", "\xc3", "\xc3(", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe2\x82",
                            "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    INFO(wrong);
    CHECK_FALSE(IsUtf8(wrong));
  }
}

TEST_CASE("ControlAt finds what a terminal would heed, and nothing else") {
  const std::string text = "a\n\x7f\u009b\u00a0\u00e9";
  std::string found;
  for (size_t i = 0; i < text.size(); ++i) found += static_cast<char>('0' + ControlAt(text, i));
  CHECK(found ==
        "0112"
        "00000");
  CHECK(ControlAt("\xc2", 0) == 0);
  CHECK(ControlAt("", 0) == 0);
}

}  // namespace
}  // namespace kvist
