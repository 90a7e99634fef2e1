"""The settings that say which rows are read and how they become documents, wherever data are prepared."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from automoe.data.prepare import PrepareConfig
from automoe.options import Settings


class DataSettings(Settings):
    """PrepareConfig's fields, but for `out`, and the chat template. Subclasses say what they mean."""

    data: Path = Field(
        description="JSONL, JSON, Parquet, CSV or text file, a folder of such, or one saved by datasets."
    )
    eval_data: Path | None = Field(None, description="Held-out data; else a share of the rows is held out.")
    eval_split: float = Field(0.05, ge=0, lt=1, description="Share of the rows held out without --eval-data.")
    split: str | None = Field(None, description="Split of a saved DatasetDict.")
    chat_template: Path | None = Field(
        None, description="Jinja file that replaces the tokenizer's chat template."
    )
    plain: bool = Field(
        False, description="Take prompt + completion as raw text although there is a chat template."
    )
    overlong: Literal["auto", "stop", "drop", "split", "truncate"] = Field(
        "auto",
        description="Rows over max_length: stop, drop, split, truncate; auto splits text, drops chats.",
    )
    on_error: Literal["stop", "skip"] = Field("stop", description="Bad rows: stop, or skip and list them.")
    max_length: int = Field(1024, ge=2, description="Longest document in tokens.")
    seed: int = Field(42, ge=0, description="Of the split.")

    def prepare_config(self, out: Path) -> PrepareConfig:
        names = set(DataSettings.model_fields) - {"chat_template"}
        return PrepareConfig(out=out, **{name: getattr(self, name) for name in names})
