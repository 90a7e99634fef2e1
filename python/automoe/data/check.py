"""A look at the data before a GPU is held: rows, formats, roles, lengths, trained share, samples."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from automoe.console import console, count
from automoe.data.encode import Encoded, Encoder
from automoe.data.formats import Chat, Example, parse_row
from automoe.data.messages import RowError
from automoe.data.preview import colour
from automoe.data.problems import Problems
from automoe.data.rows import read_rows

SAMPLES = 3


@dataclass
class Check:
    max_length: int
    rows: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    trained: int = 0
    untrainable: int = 0
    endless_turns: int = 0
    problems: Problems = field(default_factory=Problems)
    samples: list[Encoded] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def overlong(self) -> int:
        return sum(length > self.max_length for length in self.lengths)


def check(data: Path, tokenizer: Any, *, split: str | None, max_length: int, plain: bool) -> Check:
    encoder, found = Encoder(tokenizer), Check(max_length)
    for row in read_rows(data, split):
        found.rows += 1
        try:
            if row.error:
                raise RowError(row.error)
            example = parse_row(row.values, chat=encoder.has_chat_template and not plain)
            _count(found, example, encoder.encode(example))
        except RowError as error:
            found.problems.dropped(row, str(error))
    return found


def _count(found: Check, example: Example, encoded: Encoded) -> None:
    found.kinds[type(example).__name__.lower()] += 1
    if isinstance(example, Chat):
        found.roles.update(message["role"] for message in example.messages)
    found.lengths.append(len(encoded.ids))
    found.trained += encoded.num_trained
    found.untrainable += encoded.num_trained == 0
    found.endless_turns += encoded.endless_turns
    if len(found.samples) < SAMPLES:
        found.samples.append(encoded)


def show(found: Check, tokenizer: Any) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", justify="right")
    table.add_column()
    table.add_row("rows", f"{found.rows:,}, {len(found.problems.found):,} bad")
    table.add_row("read as", ", ".join(f"{n:,} {kind}" for kind, n in found.kinds.most_common()) or "nothing")
    if found.roles:
        table.add_row("roles", ", ".join(f"{n:,} {role}" for role, n in found.roles.most_common()))
    if found.lengths:
        low, middle, high, top = np.percentile(found.lengths, [0, 50, 95, 100]).astype(int)
        table.add_row("tokens", f"{count(found.tokens)}, {100 * found.trained / found.tokens:.0f}% trained")
        table.add_row("lengths", f"{low} to {top}, median {middle}, 95% up to {high}")
        table.add_row("too long", f"{found.overlong:,} beyond max_length {found.max_length}")
        table.add_row("nothing to train", f"{found.untrainable:,}")
    if found.endless_turns:
        table.add_row("no end token", f"{found.endless_turns:,} replies: the template teaches no stop")
    console.print(table)
    for number, sample in enumerate(found.samples, start=1):
        console.print(f"\n[bold cyan]── sample {number} ──[/]")
        console.print(colour(tokenizer, sample.ids, sample.trained, found.max_length), soft_wrap=True)
    if found.problems.found:
        console.print(f"[bold red]bad rows[/]\n{escape(found.problems.describe())}", soft_wrap=True)
