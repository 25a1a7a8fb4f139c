#!/usr/bin/env bash
# Checks that every C++ file of the project lies as .clang-format says; prints the files that don't.
#
# usage: tests/check/format.sh [--fix]     --fix rewrites them instead
# The binary is clang-format 14 (Debian 12): other versions lay some lines otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

mapfile -d '' files < <(git ls-files -z -co --exclude-standard -- '*.h' '*.cc')
[ ${#files[@]} -gt 0 ] || { echo "format: no files found" >&2; exit 1; }
command -v clang-format-14 >/dev/null || { echo "no clang-format-14 here: run deploy/install_dependencies.sh test" >&2; exit 1; }
if [ "${1:-}" = --fix ]; then
  printf '%s\0' "${files[@]}" | xargs -0 clang-format-14 -i
  exit 0
fi

wrong=$(printf '%s\0' "${files[@]}" | xargs -0 clang-format-14 --dry-run 2>&1 |
        sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: warning: code should be clang-formatted.*/\1/p' | sort | uniq -c)
if [ -n "$wrong" ]; then
  echo "places that clang-format lays otherwise (tests/check/format.sh --fix):"
  echo "$wrong"
  exit 1
fi
echo "format: ${#files[@]} files, all as .clang-format says"
