# How every kvist target is compiled. One target per folder; a folder's CMakeLists.txt names files and what it links, nothing else.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g1 -fno-omit-frame-pointer -DNDEBUG")  # KVIST_CHECK stays on
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

add_link_options(-Wl,--as-needed)  # what a package lists but nothing calls is not loaded: an engine gets no gRPC with the connector

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

set(KVIST_SANITIZE "" CACHE STRING "Sanitizers for everything, e.g. address,undefined")
if(KVIST_SANITIZE)
  add_compile_options(-fsanitize=${KVIST_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${KVIST_SANITIZE})
endif()

add_library(kvist_warnings INTERFACE)
target_compile_options(kvist_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                       -Wimplicit-fallthrough -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(kvist_warnings INTERFACE -Wno-restrict)  # g++ 12 sees overlaps in std::string operator+ (GCC bug 105651)
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
  _kvist_common(${target})
endfunction()

# kvist_test(name SOURCES a_test.cc ... LINK targets ... LABELS unit): a Catch2 executable that ctest runs whole.
function(kvist_test target)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  kvist_executable(${target} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK} kvist_catch_main)
  add_test(NAME ${target} COMMAND ${target} --order rand --rng-seed time)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${target} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
