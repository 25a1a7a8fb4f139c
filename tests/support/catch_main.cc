// The main function of every Catch2 test; compiled once, because it takes longer than most tests.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
