#!/usr/bin/env bash
# Builds and runs every fuzz target, src/**/<name>_fuzz.cpp, under libFuzzer with the address and
# undefined-behaviour sanitizers.
#   tools/fuzz.sh [SECONDS each, default 60] [part of a target's path...]
# A target is linked with the .cpp beside every header that it reaches, so it must stay clear of Torch.
# <name>_fuzz.dict beside it is its dictionary. Corpora and findings stay in build/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
out=build/fuzz
mkdir -p "$out"

compiler=${FUZZ_CXX:-clang++}
probe='extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
if ! command -v "$compiler" >/dev/null ||
    ! echo "$probe" | "$compiler" -x c++ -fsanitize=fuzzer,address,undefined - -o "$out/probe" 2>"$out/probe.log"; then
  echo "fuzz: skipped: $compiler with the libFuzzer runtime was not found;" \
       "install clang (Debian: clang and libclang-rt-dev) or name a compiler in FUZZ_CXX" >&2
  exit 0
fi

python=.venv/bin/python
[ -x "$python" ] || python=python3
json=$("$python" -c "import importlib.util as u; s = u.find_spec('nlohmann_json'); print(s.submodule_search_locations[0] + '/include' if s else '')")
flags=(-std=c++20 -Iinclude -Isrc ${json:+-isystem "$json"})

# The sources a target needs: for each header in reach, the .cpp of the same name.
sources_of() {
  local -A seen=()
  local queue=("$1") source header
  while [ ${#queue[@]} -gt 0 ]; do
    source=${queue[0]}
    queue=("${queue[@]:1}")
    [ -z "${seen[$source]:-}" ] || continue
    seen[$source]=1
    echo "$source"
    for header in $("$compiler" "${flags[@]}" -MM "$source" | tr -d '\\' | tr ' ' '\n' | grep '^src/.*\.h$'); do
      [ ! -f "${header%.h}.cpp" ] || queue+=("${header%.h}.cpp")
    done
  done
}

targets=0
for target in $(find src -name '*_fuzz.cpp' | sort); do
  wanted=$([ $# -eq 0 ] && echo yes || true)
  for part in "$@"; do [[ $target != *$part* ]] || wanted=yes; done
  [ -n "$wanted" ] || continue
  targets=$((targets + 1))
  name=$(basename "$target" .cpp)
  mapfile -t sources < <(sources_of "$target")
  echo "fuzz: $target for $seconds s (with ${sources[*]:1})"
  "$compiler" "${flags[@]}" -g -O1 -fno-omit-frame-pointer -fno-sanitize-recover=all \
    -fsanitize=fuzzer,address,undefined "${sources[@]}" -o "$out/$name"
  mkdir -p "$out/corpus/$name"
  options=(-max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048
           -print_final_stats=1 -artifact_prefix="$out/$name-")
  [ ! -f "${target%.cpp}.dict" ] || options+=(-dict="${target%.cpp}.dict")
  if ! "$out/$name" "${options[@]}" "$out/corpus/$name" >"$out/$name.log" 2>&1; then
    tail -60 "$out/$name.log" >&2
    echo "fuzz: $target found the above; the input lies in $out" >&2
    exit 1
  fi
  grep number_of_executed_units "$out/$name.log"
done
if [ "$targets" -eq 0 ]; then
  echo "fuzz: no target src/**/*_fuzz.cpp matches: $*" >&2
  exit 1
fi
echo "fuzz: $targets targets ran $seconds s each without a finding"
