"""Data files to prepared folders: read, encode, split, cut to length, write; nothing vanishes uncounted."""

import hashlib
import json
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from automoe.data.encode import Encoded, Encoder
from automoe.data.folder import PreparedWriter
from automoe.data.formats import parse_row
from automoe.data.messages import RowError
from automoe.data.problems import Problems
from automoe.data.rows import Row, read_rows

Overlong = Literal["auto", "stop", "drop", "split", "truncate"]
OnError = Literal["stop", "skip"]


@dataclass(frozen=True)
class PrepareConfig:
    data: Path
    out: Path
    eval_data: Path | None = None
    eval_split: float = 0.05  # share of the rows held out where there is no eval_data
    split: str | None = None  # of a saved DatasetDict
    max_length: int = 1024
    overlong: Overlong = "auto"  # text: split, everything else: drop
    on_error: OnError = "stop"
    plain: bool = False  # prompt + completion as raw text although there is a chat template
    seed: int = 42


@dataclass
class SplitSummary:
    """What became of the rows of one split. rows = documents - extra_pieces + all that was dropped."""

    rows: int = 0
    documents: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    max_document: int = 0
    bad_rows: int = 0
    dropped_overlong: int = 0
    nothing_to_train: int = 0
    split_rows: int = 0
    extra_pieces: int = 0
    truncated: int = 0
    endless_turns: int = 0


@dataclass
class PrepareSummary:
    splits: dict[str, SplitSummary] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    eos_token_ids: list[int] = field(default_factory=list)
    seconds: float = 0.0
    reused: bool = False


def prepare(
    config: PrepareConfig, tokenizer: Any, on_row: Callable[[int], None] | None = None
) -> PrepareSummary:
    """Writes config.out/train and, where anything is held out, config.out/eval."""
    began = time.monotonic()
    encoder, summary = Encoder(tokenizer), PrepareSummary(problems=Problems(config.on_error))
    names = ["train"] + (["eval"] if config.eval_data or config.eval_split > 0 else [])
    writers = {name: PreparedWriter(config.out / name) for name in names}
    summary.splits = {name: SplitSummary() for name in names}
    try:
        for count, (name, row) in enumerate(_rows(config), start=1):
            _add(config, encoder, row, writers[name], summary.splits[name], summary.problems)
            if on_row and count % 100 == 0:
                on_row(count)
        summary.problems.raise_if_stopped()
        _check_not_empty(config, summary)
        summary.eos_token_ids = sorted(encoder.eos_token_ids)
        for name, writer in writers.items():
            _finish(config, tokenizer, writer, summary, name)
        summary.problems.write(config.out / "dropped.jsonl")
    finally:
        for writer in writers.values():
            writer.discard()
    summary.seconds = time.monotonic() - began
    return summary


def _rows(config: PrepareConfig) -> Iterator[tuple[str, Row]]:
    for row in read_rows(config.data, config.split):
        held_out = config.eval_data is None and is_held_out(row.values, config.eval_split, config.seed)
        yield ("eval" if held_out else "train"), row
    if config.eval_data is not None:
        yield from (("eval", row) for row in read_rows(config.eval_data, config.split))


def is_held_out(values: dict[str, Any], share: float, seed: int) -> bool:
    """Decided by the content, so that equal rows never stand on both sides."""
    content = json.dumps(values, sort_keys=True, default=str)
    return zlib.crc32(f"{seed}:{content}".encode(errors="replace")) < share * 2**32


def _add(
    config: PrepareConfig,
    encoder: Encoder,
    row: Row,
    writer: PreparedWriter,
    split: SplitSummary,
    problems: Problems,
) -> None:
    split.rows += 1
    try:
        if row.error:
            raise RowError(row.error)
        chat = encoder.has_chat_template and not config.plain
        encoded = encoder.encode(parse_row(row.values, chat=chat))
    except RowError as error:
        split.bad_rows += 1
        problems.bad_row(row, str(error))
        return
    split.endless_turns += encoded.endless_turns
    pieces = _cut(config, encoded, row, split, problems)
    useful = [(ids, trained) for ids, trained in pieces if any(trained)]
    split.extra_pieces += max(0, len(useful) - 1)
    if pieces and not useful:
        split.nothing_to_train += 1
        problems.dropped(row, "has no token to train on")
    for ids, trained in useful:
        writer.add(ids, trained)


def _cut(
    config: PrepareConfig, encoded: Encoded, row: Row, split: SplitSummary, problems: Problems
) -> list[tuple[list[int], list[bool]]]:
    ids, trained, length = encoded.ids, encoded.trained, config.max_length
    if len(ids) <= length:
        return [(ids, trained)]
    how = config.overlong if config.overlong != "auto" else "split" if encoded.splittable else "drop"
    reason = f"has {len(ids)} tokens, more than max_length {length}"
    if how == "stop":
        problems.bad_row(
            row,
            f"{reason}; raise --max-length or choose --overlong drop, split or truncate",
            stop=True,
        )
    if how in ("stop", "drop"):
        split.dropped_overlong += 1
        problems.dropped(row, reason)
        return []
    if how == "truncate":
        split.truncated += 1
        return [(ids[:length], trained[:length])]
    split.split_rows += 1
    starts = range(0, len(ids), length)
    return [(ids[s : s + length], [False, *trained[s + 1 : s + length]]) for s in starts]


def _check_not_empty(config: PrepareConfig, summary: PrepareSummary) -> None:
    train = summary.splits["train"]
    if train.rows == train.bad_rows + train.dropped_overlong + train.nothing_to_train:
        raise ValueError(
            f"[data] {config.data}: none of {train.rows} training rows can be used\n"
            + summary.problems.describe()
        )


def _finish(
    config: PrepareConfig,
    tokenizer: Any,
    writer: PreparedWriter,
    summary: PrepareSummary,
    name: str,
) -> None:
    split = summary.splits[name]
    split.documents, split.tokens = writer.documents, writer.tokens
    split.trained_tokens, split.max_document = writer.trained_tokens, writer.max_document
    if name == "eval" and not writer.documents:
        del summary.splits[name]  # too few rows to hold any out
        shutil.rmtree(config.out / name, ignore_errors=True)
        return
    writer.finish(
        vocab_size=len(tokenizer),
        eos_token_ids=summary.eos_token_ids,
        tokenizer=str(tokenizer.name_or_path),
        fingerprint=fingerprint(config, tokenizer),
        max_length=config.max_length,
        source=str(config.eval_data if name == "eval" and config.eval_data else config.data),
        summary=asdict(split),
    )


def fingerprint(config: PrepareConfig, tokenizer: Any) -> str:
    """Changes with the sources, the tokenizer, the template and every setting that shapes the result."""
    files = []
    for path in filter(None, (config.data, config.eval_data)):
        inner = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
        files += [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in inner if f.exists()]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    settings = {k: str(v) for k, v in asdict(config).items() if k != "out"}
    parts = [
        files,
        settings,
        tokenizer.chat_template,
        backend.to_str() if backend is not None else "",
    ]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:32]
