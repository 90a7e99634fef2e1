"""Fine-tuning on a user's data, from settings to a saved and checked folder."""

from automoe.finetune.config import FinetuneConfig
from automoe.finetune.run import finetune

__all__ = ["FinetuneConfig", "finetune"]
