"""Every setting of `automoe finetune`, with the recipe's defaults, under Transformers' names."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from automoe.data.settings import DataSettings

# Ours alone; all other fields are the engine's and go to it by name.
LORA = {"use_peft", "lora_r", "lora_alpha", "use_rslora", "lora_target_modules", "merge_adapter"}
OWN = {"model", "output_dir", "dtype", "device", "prompts", "max_new_tokens", "verify"} | (
    set(DataSettings.model_fields) - {"max_length", "seed"} | LORA
)


class FinetuneConfig(DataSettings):
    aliases: ClassVar[dict[str, str]] = {
        "out": "output_dir",
        "output": "output_dir",
        "model_name_or_path": "model",
        "dataset": "data",
        "train_data": "data",
        "lr": "learning_rate",
        "epochs": "num_train_epochs",
        "batch_size": "per_device_train_batch_size",
        "micro_batch_size": "per_device_train_batch_size",
        "grad_accumulation": "gradient_accumulation_steps",
        "max_seq_length": "max_length",
        "seq_length": "max_length",
        "block_size": "max_length",
        "lr_scheduler": "lr_scheduler_type",
        "torch_dtype": "dtype",
        "resume": "resume_from_checkpoint",
        "lora": "use_peft",
        "r": "lora_r",
        "lora_rank": "lora_r",
        "target_modules": "lora_target_modules",
    }

    model: str = Field(description="Folder or repository id of a Hugging Face causal language model.")
    output_dir: Path = Field(Path("out"), description="Where model, checkpoints, metrics and report go.")

    max_length: int = Field(1024, ge=2, description="Tokens in a packed row.")
    packing: bool = Field(True, description="Fill rows with several documents; none sees another.")
    per_device_train_batch_size: int = Field(1, ge=1, description="Rows in a micro-batch.")
    gradient_accumulation_steps: int = Field(8, ge=1, description="Micro-batches in an optimizer step.")
    num_train_epochs: float = Field(1.0, gt=0, description="Passes over the data.")
    max_steps: int = Field(-1, description="Optimizer steps; wins over epochs where above 0.")
    optim: Literal["adamw", "adamw_bf16"] = Field(
        "adamw",
        description="adamw: fp32 master weights and moments. adamw_bf16: half the memory, bf16 moments, no "
        "master, stochastic rounding.",
    )
    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate; with --use-peft 1e-4.")
    weight_decay: float = Field(0.0, ge=0, description="Of matrices only.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW.")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="AdamW.")
    adam_epsilon: float = Field(1e-8, gt=0, description="AdamW.")
    max_grad_norm: float = Field(1.0, description="Clip the global gradient norm; 0: no clipping.")
    lr_scheduler_type: Literal["constant", "linear", "cosine", "warmup_stable_decay"] = Field(
        "cosine", description="constant, linear, cosine or warmup_stable_decay."
    )
    warmup_steps: int = Field(0, ge=0, description="Steps of warm-up; 0: by warmup_ratio.")
    warmup_ratio: float = Field(0.03, ge=0, le=1, description="Share of the steps that warm up.")
    decay_ratio: float = Field(
        0.1, ge=0, le=1, description="warmup_stable_decay: share of the steps that decay."
    )
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="Floor of the learning rate, as a share of it.")
    router_aux_loss: bool | None = Field(None, description="Balance loss; unset: as the model's config says.")
    freeze: list[str] = Field([], description="Parts of the names of parameters that are not trained.")
    recompute: Literal["none", "norms", "layer"] = Field(
        "norms", description="What is computed again in backward."
    )
    seed: int = Field(42, ge=0, description="Of shuffling and splitting.")
    logging_steps: int = Field(1, ge=1, description="Steps between lines of metrics.jsonl.")
    eval_steps: int = Field(0, ge=0, description="Steps between evaluations; 0: before and after only.")
    save_steps: int = Field(0, ge=0, description="Steps between checkpoints; 0: on SIGTERM only.")
    save_total_limit: int = Field(3, ge=1, description="Checkpoints kept.")
    resume_from_checkpoint: str = Field("auto", description="auto, never or a checkpoint folder.")

    use_peft: bool = Field(False, description="Train LoRA adapters; the model itself is frozen.")
    lora_r: int = Field(16, ge=1, description="Rank of the adapters.")
    lora_alpha: float = Field(32, gt=0, description="Their scale is alpha / r.")
    use_rslora: bool = Field(False, description="Their scale is alpha / sqrt(r).")
    lora_target_modules: list[str] = Field(
        ["all-linear"], description="Linear layers with an adapter, by name; all-linear: all but the head."
    )
    merge_adapter: bool = Field(False, description="Save the whole model with the adapters added in.")

    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: float32 on CPU, else bfloat16."
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    prompts: list[str] = Field([], description="Questions answered before and after; default: held-out ones.")
    max_new_tokens: int = Field(48, ge=1, description="Length of those answers.")
    verify: bool = Field(
        True, description="Reload the result with plain Transformers and compare the logits."
    )

    @model_validator(mode="before")
    @classmethod
    def _settle_adapters(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("use_peft"):
            return {"learning_rate": 1e-4, **values}
        unused = sorted(name for name in LORA - {"use_peft"} if name in values)
        if unused:
            raise ValueError(f"{', '.join(unused)} without use_peft would have no effect; add --use-peft")
        return values

    def lora_config(self) -> dict[str, Any] | None:
        """The engine's LoraConfig; None for full fine-tuning."""
        if not self.use_peft:
            return None
        return {
            "r": self.lora_r,
            "lora_alpha": self.lora_alpha,
            "use_rslora": self.use_rslora,
            "target_modules": self.lora_target_modules,
        }

    def train_config(self, eval_data: bool) -> dict[str, Any]:
        """The engine's TrainConfig. What is unset here stays at the engine's default."""
        engine = {k: v for k, v in self.model_dump().items() if k not in OWN and v is not None}
        folders = {
            "train_data": str(self.output_dir / "data" / "train"),
            "output_dir": str(self.output_dir),
        }
        if eval_data:
            folders["eval_data"] = str(self.output_dir / "data" / "eval")
        return {**engine, **folders}
