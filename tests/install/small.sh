#!/usr/bin/env bash
# Builds examples/fetch_content, which has Lowtide in itself: static, with some of the rules. Runs it, looks at what it
# needs, then installs that library and builds the user's project of this folder against it (run.sh).
#   small.sh CMAKE SOURCE_DIR BUILD_DIR GENERATOR CC CXX [CMAKE_ARGUMENTS...]
# With -DLOWTIDE_HIGHWAY_SOURCE=DIR among the arguments, the program must not need the installed Highway.
set -euo pipefail
(($# >= 6)) || { echo "usage: small.sh CMAKE SOURCE_DIR BUILD_DIR GENERATOR CC CXX [CMAKE_ARGUMENTS...]" >&2; exit 2; }
readonly cmake=$1 source=$2 build=$3 generator=$4 cc=$5 cxx=$6
shift 6

"$cmake" -S "$source/examples/fetch_content" -B "$build" -G "$generator" -DLOWTIDE_SOURCE="$source" \
  -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" "$@"
"$cmake" --build "$build"

echo "-- two rules, and a refusal of a third"
"$build/fetched" | tee "$build/said"
grep -q '^adamw: ' "$build/said"
grep -q '^lion: ' "$build/said"
grep -q "got rule 'sgd', which this library was built without: LOWTIDE_RULES was 'adamw;lion'" "$build/said"

echo "-- what the program needs"
needed="$(readelf -d "$build/fetched" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')"
echo "$needed"
if grep -q lowtide <<<"$needed" || { [[ "$*" =~ -DLOWTIDE_HIGHWAY_SOURCE=[^[:space:]] ]] && grep -q libhwy <<<"$needed"; }; then
  echo "the program is not static" >&2
  exit 1
fi
strip "$build/fetched" -o "$build/stripped"
echo "stripped: $(stat -c %s "$build/stripped") bytes"

echo "-- rules that do not exist are refused"
if "$cmake" "$build" -DLOWTIDE_RULES='adamw;lions' 2>"$build/refused"; then
  echo "LOWTIDE_RULES=adamw;lions was accepted" >&2
  exit 1
fi
grep "got 'lions'" "$build/refused"
"$cmake" "$build" -DLOWTIDE_RULES='adamw;lion' >/dev/null

"$(dirname "${BASH_SOURCE[0]}")/run.sh" "$cmake" "$build" "$generator" "$cc" "$cxx" "" | tee "$build/installed"

echo "-- a library for this processor uses the best instructions that it has"
if grep -w avx512_vbmi2 /proc/cpuinfo | grep -w avx512_bitalg | grep -w avx512_vpopcntdq | grep -w vaes | grep -qw vpclmulqdq; then
  grep -q ' on avx512_vbmi$' "$build/installed"
else
  echo "not checked: /proc/cpuinfo lacks what VBMI's kernels need"
fi
