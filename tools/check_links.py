"""Every relative link of the Markdown files leads to a file."""

import re
import subprocess
import sys
from pathlib import Path

LINK = re.compile(r"\]\(([^)#\s]+)")


def broken(file: Path) -> list[str]:
    links = [link for link in LINK.findall(file.read_text()) if "://" not in link]
    return [f"{file}: {link} does not exist" for link in links if not (file.parent / link).exists()]


files = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
problems = [problem for file in files for problem in broken(Path(file))]
print("\n".join(problems) or "links: ok")
sys.exit(bool(problems))
