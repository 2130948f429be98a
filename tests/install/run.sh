#!/usr/bin/env bash
# Installs a build tree into an empty prefix, builds the user's project of this folder against it (CMake package and
# pkg-config), runs it, and checks that the shared library shows no symbols but ours.
#   run.sh CMAKE BUILD_DIR GENERATOR CC CXX SANITIZERS
set -euo pipefail
(($# == 6)) || { echo "usage: run.sh CMAKE BUILD_DIR GENERATOR CC CXX SANITIZERS" >&2; exit 2; }
readonly cmake=$1 build=$2 generator=$3 cc=$4 cxx=$5 sanitizers=$6
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly here

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
readonly prefix="$work/prefix"

"$cmake" --install "$build" --prefix "$prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
# A moved installation must still work: nothing in it may name the place it was installed to or built in.
mv "$prefix" "$work/moved"
readonly moved="$work/moved"
if grep -rIlF -e "$prefix" -e "$build" "$moved"; then
  echo "the files above name a folder of this machine" >&2
  exit 1
fi

flags=()
[[ -z $sanitizers ]] || flags+=("-fsanitize=$sanitizers")
# The C++ block of docs/cpp.md is a program of the user's project too.
sed -n '/^```cpp$/,/^```$/{/^```/d;p}' "$here/../../docs/cpp.md" >"$work/documented.cpp"
[[ -s $work/documented.cpp ]] || { echo "docs/cpp.md has no C++ block" >&2; exit 1; }

echo "-- CMake package"
"$cmake" -S "$here" -B "$work/consumer" -G "$generator" -DCMAKE_PREFIX_PATH="$moved" \
  -DDOCUMENTED_PROGRAM="$work/documented.cpp" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_C_FLAGS="${flags[*]}" -DCMAKE_CXX_FLAGS="${flags[*]}"
"$cmake" --build "$work/consumer"
"$work/consumer/consumer_cpp"
"$work/consumer/consumer_c"
bnb="$(find "$moved" -name liblowtide_bnb.so)"
[[ -z $bnb ]] || "$work/consumer/consumer_bnb"
"$work/consumer/documented_cpp"

echo "-- C++17 is told what is wanted"
include="$(dirname "$(find "$moved" -name optimizer.h)")/.."
for header in optimizer.h sign.h; do
  if echo "#include <lowtide/$header>" | "$cxx" -std=c++17 -fsyntax-only -I"$include" -x c++ - 2>"$work/cpp17.log"; then
    echo "$header: compiled as C++17" >&2
    exit 1
  fi
  grep -m1 'error:' "$work/cpp17.log" | grep 'needs C++20' || { head -5 "$work/cpp17.log" >&2; exit 1; }
done

echo "-- license"
cmp "$here/../../LICENSE" "$(find "$moved" -name LICENSE)"

library="$(find "$moved" -name liblowtide.so)"
if command -v pkg-config >/dev/null; then
  echo "-- pkg-config, C programs with a C compiler"
  package="$(find "$moved" -name lowtide.pc)"
  export PKG_CONFIG_PATH="${package%/*}" LD_LIBRARY_PATH="${package%/pkgconfig/*}"
  for name in main:lowtide bnb:lowtide-bnb; do
    [[ $name == main:* || -n $bnb ]] || continue
    read -ra words < <(pkg-config --cflags --libs "${name#*:}")
    "$cc" -std=c11 "${flags[@]}" "$here/${name%:*}.c" -o "$work/pkg_c" "${words[@]}"
    "$work/pkg_c"
  done
fi

if [[ -n $library ]]; then
  echo "-- exported symbols"
  foreign="$(nm -DC --defined-only "$library" | cut -d' ' -f3- |
    grep -vE '^(lt_|lowtide::|(typeinfo|typeinfo name|vtable) for lowtide::|LOWTIDE_)' || true)"
  if [[ -n $foreign ]]; then
    printf 'exported, but not part of the interface:\n%s\n' "$foreign" >&2
    exit 1
  fi
fi
