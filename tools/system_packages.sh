#!/usr/bin/env bash
# Makes sure that the named Debian packages are installed: installs them as root, else says what to type.
set -euo pipefail
missing=()
for package in "$@"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -eq 0 ]; then
  echo "automoe: installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
elif command -v g++ >/dev/null && python3 -c "import venv" && [ -f /usr/include/gtest/gtest.h ]; then
  echo "automoe: not installed, but not needed to go on: ${missing[*]}"
else
  echo "automoe: these packages are missing: ${missing[*]}" >&2
  echo "automoe: install them with:  sudo apt-get install ${missing[*]}   then run make again" >&2
  exit 1
fi
