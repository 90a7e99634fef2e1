"""Rows that could not be used: where, why, and whether that ends the run."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from automoe.data.rows import Row

SHOWN = 20  # places named in a message; the file has them all
BAD_ROWS_BEFORE_STOP = 10  # a run that will stop looks on for more, so that one pass names them all
ROWS_BEFORE_STOP = 10_000


@dataclass(frozen=True)
class Problem:
    file: str
    row: int
    reason: str


@dataclass
class Problems:
    on_error: str = "skip"
    found: list[Problem] = field(default_factory=list)
    _stop: list[Problem] = field(default_factory=list)
    _first_stop: int = 0

    def bad_row(self, row: Row, reason: str, *, stop: bool = False) -> None:
        """Notes a row; where bad rows stop the run, throws once enough of them are known."""
        if not stop:
            self.dropped(row, reason)
        if stop or self.on_error == "stop":
            self._first_stop = self._first_stop or row.number
            self._stop.append(Problem(row.file, row.number, reason))
            if len(self._stop) >= BAD_ROWS_BEFORE_STOP or row.number - self._first_stop > ROWS_BEFORE_STOP:
                self.raise_if_stopped()

    def dropped(self, row: Row, reason: str) -> None:
        self.found.append(Problem(row.file, row.number, reason))

    def raise_if_stopped(self) -> None:
        if self._stop:
            raise ValueError(
                f"[data] {_count(len(self._stop), 'row')} cannot be used:\n{_describe(self._stop)}\n"
                "Repair them, or leave them out with --on-error skip"
            )

    def describe(self) -> str:
        return _describe(self.found)

    def write(self, path: Path) -> None:
        """All of them as JSON lines; no file where there are none."""
        path.unlink(missing_ok=True)
        if self.found:
            path.write_text("".join(json.dumps(asdict(problem)) + "\n" for problem in self.found))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _describe(problems: list[Problem]) -> str:
    """One line a reason: file:row, row, row: reason."""
    places: dict[tuple[str, str], list[int]] = {}
    for problem in problems:
        places.setdefault((problem.file, problem.reason), []).append(problem.row)
    lines = []
    for (file, reason), rows in list(places.items())[:SHOWN]:
        more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
        lines.append(f"  {file}:{', '.join(map(str, rows[:SHOWN]))}{more}: {reason}")
    if len(places) > SHOWN:
        lines.append(f"  ... and {len(places) - SHOWN} more kinds")
    return "\n".join(lines)
