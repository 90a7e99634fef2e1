"""The prepared folder on disk: what the engine maps into memory. The format is fixed (docs/data.md)."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

FORMAT, VERSION = "automoe-data", 1


class PreparedWriter:
    """Writes documents under a temporary name; `finish` makes the folder whole and renames it."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.tokens = self.documents = self.trained_tokens = self.max_document = 0
        self._staging = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.tmp")
        _remove_leftovers(self.folder)
        self._staging.mkdir(parents=True)
        self._files: dict[str, BinaryIO] = {
            name: (self._staging / f"{name}.bin").open("wb") for name in ("tokens", "trained", "offsets")
        }
        self._append("offsets", np.zeros(1, "<i8"))

    def add(self, ids: list[int], trained: list[bool]) -> None:
        self._append("tokens", np.asarray(ids, "<u4"))
        self._append("trained", np.asarray(trained, np.uint8))
        self.tokens += len(ids)
        self.documents += 1
        self.trained_tokens += sum(trained)
        self.max_document = max(self.max_document, len(ids))
        self._append("offsets", np.asarray([self.tokens], "<i8"))

    def finish(self, **extra: Any) -> dict[str, Any]:
        """Writes meta.json, flushes everything and renames. Returns the meta data."""
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "tokens": self.tokens,
            "documents": self.documents,
            "trained_tokens": self.trained_tokens,
            "max_document": self.max_document,
            **extra,
        }
        self._files["meta"] = (self._staging / "meta.json").open("wb")
        self._files["meta"].write(json.dumps(meta, indent=2).encode())
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self._staging.rename(self.folder)
        return meta

    def discard(self) -> None:
        """Removes what was not finished. Does nothing after finish."""
        for file in self._files.values():
            file.close()
        shutil.rmtree(self._staging, ignore_errors=True)

    def _append(self, name: str, values: np.ndarray) -> None:
        self._files[name].write(values.tobytes())


def _remove_leftovers(folder: Path) -> None:
    """What killed processes left unfinished; those still at work keep theirs."""
    for staging in folder.parent.glob(f".{folder.name}.*.tmp"):
        pid = staging.name.split(".")[-2]
        if pid == str(os.getpid()) or (pid.isdigit() and not Path(f"/proc/{pid}").exists()):
            shutil.rmtree(staging, ignore_errors=True)


class PreparedFolder:
    """A prepared folder, mapped into memory."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / "meta.json").is_file():
            raise ValueError(
                f"[data] {folder} is no prepared folder (no meta.json); make one: automoe data prepare"
            )
        self.meta: dict[str, Any] = json.loads((self.folder / "meta.json").read_text())
        if self.meta.get("format") != FORMAT or self.meta.get("version") != VERSION:
            raise ValueError(
                f"[data] {folder}/meta.json says {self.meta.get('format')} version "
                f"{self.meta.get('version')}; expected {FORMAT} version {VERSION}; prepare the data again"
            )
        self._tokens = self._map("tokens", "<u4", self.meta["tokens"])
        self._trained = self._map("trained", np.uint8, self.meta["tokens"])
        self._offsets = self._map("offsets", "<i8", self.meta["documents"] + 1)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def document(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and flags of one document."""
        part = slice(int(self._offsets[index]), int(self._offsets[index + 1]))
        return self._tokens[part], self._trained[part]

    def documents(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return (self.document(i) for i in range(len(self)))

    def lengths(self) -> np.ndarray:
        return np.diff(self._offsets)

    def _map(self, name: str, dtype: Any, count: int) -> np.ndarray:
        file = self.folder / f"{name}.bin"
        expected = count * np.dtype(dtype).itemsize
        found = file.stat().st_size if file.is_file() else -1
        if found != expected:
            raise ValueError(f"[data] {file} has {found} bytes, expected {expected}; prepare the data again")
        return np.memmap(file, dtype, "r") if count else np.zeros(0, dtype)
