#!/usr/bin/env python3
"""Fails if a folder of src/ includes one that it may not, or CUDA code includes Torch."""

import re
import sys
from pathlib import Path

ALLOWED = {
    "core": set(),
    "hub": {"core"},
    "kernels": {"core"},
    "parallel": {"core", "kernels"},
    "blocks": {"core", "kernels"},
    "moe": {"core", "kernels", "parallel", "blocks"},
    "models": {"core", "hub", "kernels", "parallel", "blocks", "moe"},
    "train": {"core", "hub", "kernels", "parallel", "models"},
    "bindings": {"core", "hub", "kernels", "parallel", "blocks", "moe", "models", "train"},
}
INCLUDE = re.compile(r'^#include ["<]([a-z0-9_]+)/', re.MULTILINE)
TORCH = re.compile(r"^#include <(torch|ATen|c10)/", re.MULTILINE)


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    faults = []
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        folder, text = path.relative_to(root / "src").parts[0], path.read_text()
        for other in set(INCLUDE.findall(text)) & ALLOWED.keys():
            if other != folder and other not in ALLOWED[folder]:
                faults.append(f"{path.relative_to(root)} includes {other}/, which {folder} may not")
        if path.suffix in {".cu", ".cuh"} and TORCH.search(text):
            faults.append(f"{path.relative_to(root)} includes a Torch header; kernels take plain pointers")
    for path in (root / "include").rglob("*.h"):
        for other in set(INCLUDE.findall(path.read_text())) & ALLOWED.keys():
            faults.append(f"{path.relative_to(root)} includes {other}/; public headers need libtorch only")
    print("\n".join(faults) or "include order: ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
