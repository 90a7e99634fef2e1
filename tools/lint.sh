#!/usr/bin/env bash
# Format, include order, sizes, Python lint and spelling. `tools/lint.sh --fix` repairs what it can.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/system_packages.sh clang-format
mapfile -t cpp < <(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
mapfile -t python < <(git ls-files '*.py')
if [ "${1:-}" = --fix ]; then
  clang-format -i "${cpp[@]}"
  .venv/bin/ruff check -q --fix "${python[@]}" || true
  .venv/bin/ruff format -q "${python[@]}"
fi
clang-format --dry-run --Werror "${cpp[@]}"
.venv/bin/ruff check -q "${python[@]}"
.venv/bin/ruff format -q --check "${python[@]}"
.venv/bin/codespell $(git ls-files | grep -v -E '^(LICENSE|tests/fixtures)')
python3 tools/check_layers.py
python3 tools/check_sizes.py
python3 tools/check_links.py
