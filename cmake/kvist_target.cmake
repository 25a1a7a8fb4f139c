# How every kvist target is compiled. One target per folder; a folder's CMakeLists.txt names files and what it links, nothing else.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
# -O2: after a pause what counts is how few cache lines a request touches, and -O3 made an idle round trip 10 % slower. KVIST_CHECK stays on.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -fno-omit-frame-pointer -fno-plt -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")
if(CMAKE_CXX_CLANG_TIDY)
  set(CMAKE_CXX_FLAGS_DEBUG "-O0")  # nobody runs that
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
# With CMAKE_UNITY_BUILD (the presets but debug) a target's files are compiled some at once: of one file's time three quarters are the headers
# that its neighbours read too.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

add_link_options(-Wl,--as-needed)  # what a package lists but nothing calls is not loaded: an engine gets no gRPC with the connector

# What one checkout compiled serves every other on this machine: no path of a checkout gets into an object (gdb finds the files from the
# checkout's root).
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}=.)
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
endif()

set(KVIST_SANITIZE "" CACHE STRING "Sanitizers for everything, e.g. address,undefined")
if(KVIST_SANITIZE)
  # Without null and vptr, a fifth of the time to compile: a null pointer ends the process anyway, and nobody casts down. Without alignment, two
  # fifths of the rest with g++ 12: fuzz's clang looks at it where bytes come from outside.
  add_compile_options(-fsanitize=${KVIST_SANITIZE} -fno-sanitize-recover=all -fno-sanitize=null,vptr)
  if(NOT KVIST_FUZZ)
    add_compile_options(-fno-sanitize=alignment)
  endif()
  add_link_options(-fsanitize=${KVIST_SANITIZE})
  find_program(LLD ld.lld)
  if(LLD)
    add_link_options(-fuse-ld=lld)  # a sixth of these builds was linking
  endif()
endif()

option(KVIST_FUZZ "Compile with libFuzzer's coverage, and build tests/fuzz; clang only" OFF)
if(KVIST_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(KVIST_SANITIZE STREQUAL "thread")
  # In every program: tells ThreadSanitizer of the locks that Debian's Abseil takes.
  add_library(kvist_tsan_abseil OBJECT ${CMAKE_SOURCE_DIR}/tests/support/tsan_abseil.cc)
  set_target_properties(kvist_tsan_abseil PROPERTIES CXX_VISIBILITY_PRESET default)
endif()

add_library(kvist_warnings INTERFACE)
target_compile_options(kvist_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                       -Wimplicit-fallthrough -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(kvist_warnings INTERFACE -Wno-restrict)  # g++ 12 sees overlaps in std::string operator+ (GCC bug 105651)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND KVIST_SANITIZE STREQUAL "thread")
  # Instrumented code hides from g++ 12 that a variant's other members are never looked at.
  target_compile_options(kvist_warnings INTERFACE -Wno-maybe-uninitialized)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(kvist_warnings INTERFACE -Wthread-safety -Werror=thread-safety)
endif()

function(_kvist_common target)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE kvist_warnings)
endfunction()

# kvist_library(name SOURCES a.cc ... LINK targets ...)
function(kvist_library target)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${target} STATIC ${ARG_SOURCES})
  target_link_libraries(${target} PUBLIC ${ARG_LINK})
  _kvist_common(${target})
endfunction()

# kvist_executable(name SOURCES a.cc ... LINK targets ...)
function(kvist_executable target)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_LINK})
  if(KVIST_SANITIZE STREQUAL "thread")
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:kvist_tsan_abseil>)
  endif()
  _kvist_common(${target})
endfunction()

# kvist_test(name SOURCES a_test.cc ... LINK targets ... LABELS unit): a Catch2 executable that ctest runs whole. The target
# tests_<label> builds all tests with that label.
function(kvist_test target)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  kvist_executable(${target} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK} kvist_catch_main)
  if(NOT CMAKE_CXX_CLANG_TIDY)
    target_compile_options(${target} PRIVATE -Og)  # a test runs once, and what it tests is as ever: a third less to compile than at -O2
  endif()
  add_test(NAME ${target} COMMAND ${target} --order rand --rng-seed time)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(KVIST_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 3")  # ThreadSanitizer takes ten times as long where a test writes much memory
  endif()
  set_tests_properties(${target} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  foreach(label ${ARG_LABELS})
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${target})
  endforeach()
endfunction()
