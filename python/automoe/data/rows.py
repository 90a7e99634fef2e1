"""Rows out of JSONL, JSON, Parquet, CSV and text files and `datasets` folders, each with its place."""

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv", ".txt", ".md")


@dataclass(frozen=True)
class Row:
    """One row as it stands in its file. `error` is set where the file itself cannot be parsed here."""

    file: str
    number: int  # counted from 1; JSONL and CSV: the line where the row begins
    values: dict[str, Any]
    error: str | None = None

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"


def read_rows(path: str | Path, split: str | None = None) -> Iterator[Row]:
    """Every row of a data file, of a folder of such files, or of a folder saved by `datasets`."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"[data] {path} does not exist; expected a file ({', '.join(SUFFIXES)}) or a folder")
    if path.is_dir():
        yield from _read_folder(path, split)
    else:
        yield from _read_file(path)


def _read_folder(path: Path, split: str | None) -> Iterator[Row]:
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        yield from _read_datasets(path, split)
        return
    files = sorted(f for f in path.rglob("*") if f.is_file() and _suffix(f) in SUFFIXES)
    if not files:
        raise ValueError(f"[data] {path} holds no data file; expected one of {', '.join(SUFFIXES)}")
    for file in files:
        yield from _read_file(file)


def _read_datasets(path: Path, split: str | None) -> Iterator[Row]:
    import datasets

    loaded = datasets.load_from_disk(str(path))
    if isinstance(loaded, datasets.DatasetDict):
        wanted = split or "train"
        if wanted not in loaded:
            raise ValueError(
                f"[data] {path} has no split '{wanted}'; it has {', '.join(loaded)}; choose with --split"
            )
        loaded = loaded[wanted]
    for number, values in enumerate(loaded, start=1):
        yield Row(str(path), number, values)


def _suffix(file: Path) -> str:
    return Path(file.stem).suffix.lower() if file.suffix == ".gz" else file.suffix.lower()


def _read_file(file: Path) -> Iterator[Row]:
    suffix = _suffix(file)
    if suffix in (".jsonl", ".ndjson"):
        yield from _read_jsonl(file)
    elif suffix == ".json":
        yield from _read_json(file)
    elif suffix == ".parquet":
        yield from _read_parquet(file)
    elif suffix in (".csv", ".tsv"):
        yield from _read_csv(file, "\t" if suffix == ".tsv" else ",")
    elif suffix in (".txt", ".md"):
        yield Row(str(file), 1, {"text": _open(file).read()})
    else:
        raise ValueError(
            f"[data] {file}: cannot read '{suffix}' files; expected one of {', '.join(SUFFIXES)}"
        )


def _open(file: Path):
    # utf-8-sig drops the byte order mark of spreadsheets; bytes that are no UTF-8 are an error of the row
    opener = gzip.open if file.suffix == ".gz" else open
    return opener(file, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")


def _json_row(file: Path, number: int, text: str) -> Row:
    try:
        values = json.loads(text)
    except ValueError as error:
        return Row(str(file), number, {}, f"is no valid JSON: {error}")
    return _checked(file, number, values)


def _checked(file: Path, number: int, values: Any) -> Row:
    if not isinstance(values, dict):
        return Row(str(file), number, {}, f"expected a JSON object, got {type(values).__name__}")
    return Row(str(file), number, values)


def _read_jsonl(file: Path) -> Iterator[Row]:
    with _open(file) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _json_row(file, number, line)


def _read_json(file: Path) -> Iterator[Row]:
    with _open(file) as stream:
        text = stream.read()
    try:
        whole = json.loads(text)
    except ValueError:
        yield from _read_jsonl(file)  # JSON lines under a .json name are common
        return
    if isinstance(whole, dict):  # one row, or one list of rows under a name such as "data"
        lists = [v for v in whole.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        whole = lists[0] if len(whole) == 1 and lists and not _is_message(lists[0][0]) else [whole]
    if not isinstance(whole, list):
        whole = [whole]
    for number, values in enumerate(whole, start=1):
        yield _checked(file, number, values)


def _is_message(value: dict[str, Any]) -> bool:
    return "role" in value or "from" in value


def _read_parquet(file: Path) -> Iterator[Row]:
    import pyarrow.parquet

    number = 0
    for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=1024):
        for values in batch.to_pylist():
            number += 1
            yield Row(str(file), number, values)


def _read_csv(file: Path, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)
    with _open(file) as stream:
        reader = csv.DictReader(stream, delimiter=delimiter, restkey="", restval=None)
        line = reader.line_num + 1
        for values in reader:
            error = None
            if "" in values:
                error = f"has more fields than the {len(reader.fieldnames or [])} of the header"
            elif None in values.values():
                error = f"has fewer fields than the {len(reader.fieldnames or [])} of the header"
            yield Row(str(file), max(line, 2), values, error)
            line = reader.line_num + 1
