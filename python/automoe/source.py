"""Where a model's files are: a local folder, or a repository id resolved through the Hugging Face cache."""

import re
from pathlib import Path
from typing import Any

WANTED = ("*.json", "*.safetensors", "*.jinja", "tokenizer*", "vocab*", "merges.txt", "*.model")


def local_folder(model: str | Path, *, weights: bool = True) -> Path:
    """The folder of a model; downloads a repository id where the hub is reachable, honouring the cache."""
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.exists():
        raise ValueError(f"[model] {folder} has no config.json; expected a Hugging Face model folder")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(model)):
        raise ValueError(
            f"[model] {model} does not exist; expected a folder or a repository id like owner/name"
        )
    from huggingface_hub import snapshot_download

    patterns = [p for p in WANTED if weights or p != "*.safetensors"]
    try:
        return Path(snapshot_download(str(model), allow_patterns=patterns))
    except Exception as error:  # offline, not found, no permission: all end here with the hub's own words
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"[model] {model} is no local folder and could not be fetched: {reason}") from None


def quiet_transformers() -> None:
    """No progress bars of Transformers between our own lines."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def load_tokenizer(folder: Path, chat_template: Path | None = None) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if chat_template is not None:
        if not chat_template.is_file():
            raise ValueError(f"[data] chat template {chat_template} does not exist")
        tokenizer.chat_template = chat_template.read_text()
    return tokenizer
