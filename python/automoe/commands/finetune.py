"""automoe finetune."""

from pathlib import Path
from typing import Any

from automoe.console import friendly
from automoe.finetune.config import FinetuneConfig
from automoe.options import flags_of


@flags_of(FinetuneConfig)
@friendly
def finetune(config: Path | None, flags: dict[str, Any]) -> None:
    """Fine-tune a model on your data: chats, prompts with completions, or plain text.

    Settings come from --config FILE.yaml, from flags, or both. Stopped runs go on with the same command.
    """
    settings = FinetuneConfig.from_yaml(config, flags)
    from automoe.finetune.run import finetune

    finetune(settings)
