#!/usr/bin/env python3
"""Fails on source files that grew past their limit (non-blank lines). A listed exception names its reason."""

import subprocess
import sys
from pathlib import Path

LIMITS = {".cpp": 400, ".h": 250, ".py": 350, ".cu": 500, ".cuh": 250}
EXCEPTIONS: dict[str, str] = {}


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True)
    faults = []
    for name in listed.stdout.split("\n"):
        limit = LIMITS.get(Path(name).suffix)
        if limit is None or name in EXCEPTIONS or not (root / name).exists():
            continue
        lines = sum(1 for line in (root / name).read_text().split("\n") if line.strip())
        if lines > limit:
            faults.append(f"{name}: {lines} lines, at most {limit}; look for a seam")
    print("\n".join(faults) or "file sizes: ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
