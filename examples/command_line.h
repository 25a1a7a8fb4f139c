#ifndef KVIST_EXAMPLES_COMMAND_LINE_H_
#define KVIST_EXAMPLES_COMMAND_LINE_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace examples {

// For CLI::Option::transform: the text must be a whole number in decimal, from `min` to `max`, which the option's type must hold. (CLI::Range
// prints its limits as floating point, CLI11 itself takes -1 for the largest number and a leading 0 for octal.)
inline CLI::Validator WholeNumber(uint64_t min, uint64_t max) {
  const auto read = [min, max](std::string& text) -> std::string {
    uint64_t number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < min || number > max) {
      return absl::StrCat("must be a whole number from ", min, " to ", max, "; it is ", text);
    }
    text = absl::StrCat(number);
    return "";
  };
  return CLI::Validator(read, absl::StrCat(min, " to ", max));
}

}  // namespace examples

#endif  // KVIST_EXAMPLES_COMMAND_LINE_H_
