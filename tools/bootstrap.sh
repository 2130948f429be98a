#!/usr/bin/env bash
# Makes a fresh clone ready: system packages, .venv, Python requirements, and the package built and installed into
# .venv. Needs git, python3, g++ and make. Does only what is missing or out of date, so every make target calls it.
#   tools/bootstrap.sh --system-only          compilers, CMake and libraries only
#   tools/bootstrap.sh --clang [...]          clang, too
#   tools/bootstrap.sh [--extras test,bench]  all, with these optional requirements of pyproject.toml
#   tools/bootstrap.sh --no-package [...]     all but the package
#   tools/bootstrap.sh --no-package --only --extras sycl-runtime    of the Python requirements these alone
#   tools/bootstrap.sh --native [...]         the package for this machine's processor alone: a third of the time
#   tools/bootstrap.sh --build-dir DIR [...]  the package of what CMake has built in DIR, with the options that DIR has
# CUDA kernels are built where a GPU is seen, or with CMAKE_ARGS=-DLOWTIDE_CUDA=ON; in DIR as DIR has it. Every wait shows
# how far it is; build/logs has the whole output.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

system_only=no
clang=no
package=yes
only=no
native=no
build_dir=""
extras=""
while (($#)); do
  case "$1" in
    --system-only) system_only=yes ;;
    --clang) clang=yes ;;
    --no-package) package=no ;;
    --only) only=yes ;;
    --native) native=yes ;;
    --build-dir)
      build_dir="${2:?--build-dir wants a folder, e.g. build/dev}"
      shift
      ;;
    --extras)
      extras="${2:?--extras wants a list, e.g. test,bench}"
      shift
      ;;
    *)
      echo "bootstrap: got '$1', wanted --system-only, --clang, --no-package, --only, --native, --build-dir DIR or --extras LIST" >&2
      exit 2
      ;;
  esac
  shift
done

if [[ -n $build_dir && $native == yes ]]; then
  echo "bootstrap: got --native and --build-dir, wanted one of them" >&2
  exit 2
fi

readonly venv=.venv
readonly logs=build/logs
mkdir -p "$logs"

say() { printf 'bootstrap: %s\n' "$*"; }
die() {
  printf 'bootstrap: %s\n' "$*" >&2
  exit 1
}

# The newest words of a log that say how far a build, pip or apt-get is.
how_far() {
  tail -c 4000 "$1" 2>/dev/null | tr '\r' '\n' |
    grep -aoE '\[[0-9]+/[0-9]+\]|(Collecting|Downloading|Using cached|Installing|Unpacking|Setting up) [^ ]+' | tail -n 1 | cut -c-60
}

# Shows every second how far the writer of a log is: in one line of a terminal, else the words where they are new, and dots.
ticks() {
  local begin=$SECONDS now before=""
  trap 'exit 0' TERM
  while kill -0 $$ 2>/dev/null; do
    now="$(how_far "$1" || true)"
    if [[ -t 1 ]]; then
      printf '\r\033[K  %d s %s' $((SECONDS - begin)) "$now"
    elif [[ $now != "$before" ]]; then
      printf ' %s' "$now"
    else
      printf '.'
    fi
    before=$now
    sleep 1 &
    wait $!
  done
}

# Runs a command with its output in a log, and shows how far it is; its exit status.
shown() {
  local log="$logs/$1.log" ticker status=0 begin=$SECONDS
  shift
  : >"$log"
  ticks "$log" 9>&- &
  ticker=$!
  "$@" >"$log" 2>&1 </dev/null || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  if [[ -t 1 ]]; then printf '\r\033[K'; fi
  printf '  %d s\n' $((SECONDS - begin))
  return $status
}

# The same; shows the end of the log and ends all if the command fails.
logged() {
  shown "$@" && return
  tail -n 60 "$logs/$1.log" >&2
  die "failed: ${*:2} (whole output: $logs/$1.log)"
}

# One bootstrap at a time in this clone.
if command -v flock >/dev/null; then
  exec 9>build/bootstrap.lock
  if ! flock -n 9; then
    say "another bootstrap works in this clone: waiting for it"
    until flock -w 1 9; do printf '.'; done
  fi
fi

sees_gpu() { compgen -G '/proc/driver/nvidia/gpus/*' >/dev/null || compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg ]]; }

# The Python of .venv: one, with its headers, that all packages of the tests support (3.13 has no verl), in PATH or in
# pyenv's folder; else python3, if it is 3.10 or newer.
is_whole() {
  "$1" -c 'import ensurepip, os, sysconfig, venv; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null
}
supported_python() {
  local version candidate
  for version in 3.12 3.13; do
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python3; do
      if is_whole "$candidate"; then
        echo "$candidate"
        return
      fi
    done
  done
  echo python3
}
base_python="$(supported_python)"
readonly base_python

# ---- system packages ----

has_header() { printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$1" | g++ -E -x c++ - >/dev/null 2>&1; }

missing_packages() {
  command -v g++ >/dev/null || echo g++
  [[ $clang == no ]] || command -v clang++ >/dev/null || echo clang
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  command -v pkg-config >/dev/null || echo pkg-config
  if command -v g++ >/dev/null; then
    has_header hwy/highway.h || echo libhwy-dev
    has_header xxhash.h || echo libxxhash-dev
    has_header nlohmann/json.hpp || echo nlohmann-json3-dev
    has_header liburing.h || echo liburing-dev
    has_header gtest/gtest.h || echo libgtest-dev
    has_header boost/context/fiber.hpp || echo libboost-context-dev
  else
    echo libhwy-dev libgtest-dev libboost-context-dev libxxhash-dev nlohmann-json3-dev liburing-dev
  fi
  [[ ",$extras," != *,arm,* ]] || command -v aarch64-linux-gnu-g++ >/dev/null || echo g++-aarch64-linux-gnu
  if [[ ",$extras," =~ ,(wheels|arm), ]]; then
    command -v qemu-aarch64 >/dev/null || echo qemu-user
    [[ -f /usr/share/keyrings/debian-archive-keyring.gpg ]] || echo debian-archive-keyring
  fi
  if [[ $system_only == no || ",$extras," == *,wheels,* ]]; then
    is_whole "$base_python" || echo python3-venv python3-dev
  fi
}

install_system_packages() {
  local packages sudo=()
  mapfile -t packages < <(missing_packages | tr ' ' '\n')
  ((${#packages[@]})) || return 0

  local advice="missing system packages: ${packages[*]}
  Debian or Ubuntu: apt-get install ${packages[*]}
  Elsewhere: install their equivalents, then run this again."
  command -v apt-get >/dev/null || die "$advice"
  if [[ $(id -u) != 0 ]]; then
    sudo -n true 2>/dev/null || die "$advice"
    sudo=(sudo -n)
  fi
  say "installing system packages: ${packages[*]}"
  logged apt-update "${sudo[@]}" apt-get update -q
  logged apt-install "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${packages[@]}"

  mapfile -t packages < <(missing_packages | tr ' ' '\n')
  ((${#packages[@]} == 0)) || die "still missing after installation: ${packages[*]}"
}

install_system_packages
command -v python3 >/dev/null || die "python3 was not found; install Python 3.10 or newer"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  die "python3 is $(python3 -V 2>&1); wanted Python 3.10 or newer"
# Packages that something can do without, where apt-get may be run.
try_packages() {
  command -v apt-get >/dev/null && [[ $(id -u) == 0 ]] || return 1
  say "installing system packages: ${*:2}"
  (logged apt-update apt-get update -q &&
    logged "$1" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${@:2}")
}
has_libcxx() { printf '#include <span>\n' | clang++ -stdlib=libc++ -std=c++20 -fsyntax-only -x c++ - >/dev/null 2>&1; }
if [[ ",$extras," == *,test,* ]]; then
  command -v mpirun >/dev/null || try_packages apt-mpi openmpi-bin libopenmpi-dev || say "no MPI: the tests of its header are skipped"
  has_libcxx || try_packages apt-libcxx clang libc++-dev libc++abi-dev ||
    say "no second C++ library: the tests of the border between library and plug-ins are skipped"
fi
if [[ ",$extras," == *,fuzz,* ]] && ! command -v clang++ >/dev/null; then
  try_packages apt-clang clang libclang-rt-dev || say "no clang, whose libFuzzer make fuzz needs"
fi
[[ $system_only == yes ]] && exit 0

# ---- .venv and Python requirements ----

if ! "$venv/bin/python" -c 'import pip' >/dev/null 2>&1; then
  say "creating $venv"
  logged venv "$base_python" -m venv --clear "$venv"
fi
readonly python="$PWD/$venv/bin/python"
# Modules are compiled when they are first imported: of gigabytes of packages most never are.
readonly install=("$python" -m pip install --no-input --disable-pip-version-check --no-compile)

# The requirements that pyproject.toml names, one a line: to build, to run, and each extra of the list; with "only",
# those of the extras; with "alone", the groups EXTRA-alone of the extras, which are installed without what they require.
requirements() {
  "$python" - "$extras" "${1:-}" "$only" <<'PY'
import sys

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

with open("pyproject.toml", "rb") as file:
    tree = tomllib.load(file)
alone = sys.argv[2] == "alone"
lines = [] if alone or sys.argv[3] == "yes" else tree["build-system"]["requires"] + tree["project"]["dependencies"]
for extra in filter(None, sys.argv[1].split(",")):
    known = tree["project"]["optional-dependencies"]
    if extra not in known:
        sys.exit(f"bootstrap: pyproject.toml has no extra {extra!r}; it has {', '.join(known)}")
    lines += tree["dependency-groups"].get(f"{extra}-alone", []) if alone else known[extra]
print("\n".join(sorted(set(lines))))
PY
}

wanted="$(requirements)"
alone="$(requirements alone)"
# A stamp lists the requirements that were installed; it lives in .venv, so it goes when .venv goes.
stamp="$venv/.requirements-${extras//,/-}"
# Where no GPU is, torch without CUDA: a tenth of the bytes. PyPI has it with CUDA only, its makers' index without.
readonly cpu_index=https://download.pytorch.org/whl/cpu
has_module() { "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }
cpu_torch() {
  say "no GPU is seen: looking for torch without CUDA at $cpu_index"
  if shown cpu-index "$python" -c "import urllib.request as u; u.urlopen('$cpu_index/torch/', timeout=5).close()"; then
    say "installing torch without CUDA"
    logged pip-torch "${install[@]}" --index-url "$cpu_index" \
      "$(grep '^torch[><=~ ]*' <<<"$wanted")"
  else
    say "$cpu_index cannot be reached: torch comes from pip's index, with CUDA, gigabytes more"
  fi
}

if [[ ! -f $stamp || $(<"$stamp") != "$wanted$alone" ]]; then
  if [[ $(uname -s) == Linux ]] && grep -q '^torch' <<<"$wanted" && ! sees_gpu && ! has_module torch; then cpu_torch; fi
  say "installing Python requirements (torch and intel-* are large the first time): $(tr '\n' ' ' <<<"$wanted $alone")"
  printf '%s\n' "$wanted" >"$logs/requirements.txt"
  logged pip-requirements "${install[@]}" -r "$logs/requirements.txt"
  if [[ -n $alone ]]; then
    printf '%s\n' "$alone" >"$logs/requirements-alone.txt"
    logged pip-requirements-alone "${install[@]}" --no-deps -r "$logs/requirements-alone.txt"
  fi
  printf '%s\n' "$wanted$alone" >"$stamp"
fi

# ---- the package ----

[[ $package == no ]] && exit 0

# The compiler of CUDA kernels, where cmake/FindNvcc.cmake looks for it.
cuda_compiler() {
  local nvcc
  for nvcc in "${CUDA_HOME:-}/bin/nvcc" "${CUDA_PATH:-}/bin/nvcc" /usr/local/cuda/bin/nvcc "$(command -v nvcc)"; do
    [[ -x $nvcc ]] || continue
    echo "$nvcc"
    "$nvcc" --version
    return
  done
  echo "no CUDA compiler"
}

# The version of an installed package, or nothing: pip would take a second to say it.
version_of() { "$python" -c "from importlib.metadata import distributions as all
print(*(d.version for d in all(name='$1')))"; }

# Options of the build that CMAKE_ARGS does not name. A folder that CMake has built has its own.
options=()
if [[ -z $build_dir ]]; then
  build_dir=build/wheel
  if [[ ${CMAKE_ARGS:-} != *LOWTIDE_CUDA=* ]]; then
    if sees_gpu; then
      [[ $(cuda_compiler) != "no CUDA compiler" ]] || say "a GPU is seen, but no nvcc: CUDA kernels are left out"
    else
      [[ $(cuda_compiler) == "no CUDA compiler" ]] ||
        say "no GPU is seen: CUDA kernels are left out (CMAKE_ARGS=-DLOWTIDE_CUDA=ON builds them)"
      options+=(-C cmake.define.LOWTIDE_CUDA=OFF)
    fi
  fi
  # One instruction set instead of four.
  if [[ $native == yes ]] && g++ -march=native -E -x c++ /dev/null >/dev/null 2>&1; then
    build_dir=build/native
    options+=(-C cmake.define.LOWTIDE_NATIVE=ON)
  elif [[ ${CMAKE_ARGS:-} != *LOWTIDE_NATIVE=* ]]; then
    options+=(-C cmake.define.LOWTIDE_NATIVE=OFF)
  fi
fi

# Content, not times: a checkout or a touch builds nothing. With the SYCL runtime, or CUDA's compiler, the package has a
# plug-in for it.
package_hash() {
  {
    "$python" -VV
    echo "$build_dir ${CMAKE_ARGS:-} ${options[*]}"
    cuda_compiler
    echo "SYCL runtime: $(version_of intel-sycl-rt)"
    find CMakeLists.txt pyproject.toml LICENSE README.md cmake include src python -type f \
      ! -name '*_test.cpp' ! -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
  } | sha256sum
}

hash="$(package_hash)"
stamp="$venv/.package"
if [[ ! -f $stamp || $(<"$stamp") != "$hash" || -z $(version_of lowtide) ]]; then
  say "building and installing the lowtide package: minutes, the first time (see $logs/pip-package.log)"
  rm -f "$stamp"
  # The build folder stays, so that only changed files compile again; the options of a build before must not.
  asked="${CMAKE_ARGS:-} ${options[*]}"
  if [[ $build_dir == build/wheel || $build_dir == build/native ]]; then
    [[ -f $build_dir/options && $(<"$build_dir/options") == "$asked" ]] || rm -f "$build_dir/CMakeCache.txt"
    mkdir -p "$build_dir" && printf '%s\n' "$asked" >"$build_dir/options"
  fi
  logged pip-package "${install[@]}" -v --no-build-isolation --no-deps --force-reinstall \
    -C build-dir="$build_dir" -C cmake.define.LOWTIDE_PYTHON=ON "${options[@]}" .
  printf '%s\n' "$hash" >"$stamp"
fi
