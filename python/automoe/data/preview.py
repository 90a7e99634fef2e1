"""One example with its loss mask in colour."""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from rich.text import Text

from automoe.console import console
from automoe.data.encode import Encoder
from automoe.data.folder import PreparedFolder
from automoe.data.formats import parse_row
from automoe.data.messages import RowError
from automoe.data.rows import read_rows

STYLES = {"trained": "bold green", "read": "dim", "cut": "red strike"}


def preview(data: Path, tokenizer: Any, *, first: int, rows: int, max_length: int, plain: bool) -> None:
    """Prints rows first, first + 1, ... of a data file or of a prepared folder."""
    shown = 0
    for place, ids, trained in islice(_examples(data, tokenizer, plain), first - 1, first - 1 + rows):
        console.print(f"\n[bold cyan]── {place} ──[/]", soft_wrap=True)
        console.print(colour(tokenizer, ids, trained, max_length), soft_wrap=True)
        beyond = f", {len(ids) - max_length} beyond max_length {max_length}" if len(ids) > max_length else ""
        console.print(f"[dim]{len(ids)} tokens, {sum(trained)} trained{beyond}[/]")
        shown += 1
    if not shown:
        raise ValueError(f"[data] {data} has no row {first}")
    legend = (
        Text("trained", STYLES["trained"])
        + Text("  read only", STYLES["read"])
        + Text("  cut off", STYLES["cut"])
    )
    console.print(legend)


def colour(tokenizer: Any, ids: Sequence[int], trained: Sequence[bool], max_length: int) -> Text:
    """The decoded tokens; runs with one fate are decoded together, as one character can span tokens."""
    fates = ["cut" if i >= max_length else "trained" if flag else "read" for i, flag in enumerate(trained)]
    text = Text()
    for fate, run in groupby(zip(fates, ids, strict=True), key=lambda pair: pair[0]):
        part = tokenizer.decode([token for _, token in run])
        text.append(part.replace("\n", "⏎\n") if fate == "trained" else part, STYLES[fate])
    return text


def _examples(data: Path, tokenizer: Any, plain: bool) -> Iterator[tuple[str, list[int], list[bool]]]:
    if (data / "meta.json").is_file():
        for number, (ids, trained) in enumerate(PreparedFolder(data).documents(), start=1):
            yield f"{data} document {number}", ids.tolist(), [bool(t) for t in trained]
        return
    encoder = Encoder(tokenizer)
    for row in read_rows(data):
        try:
            if row.error:
                raise RowError(row.error)
            encoded = encoder.encode(parse_row(row.values, chat=encoder.has_chat_template and not plain))
        except RowError as error:
            raise ValueError(f"[data] {row.place}: {error}") from None
        yield row.place, encoded.ids, encoded.trained
