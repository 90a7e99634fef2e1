"""The ten lines before the first step: what will train, on what, how, and how to get it back."""

from typing import Any

from rich.table import Table

from automoe.console import console, count
from automoe.data.prepare import PrepareSummary
from automoe.finetune.config import FinetuneConfig
from automoe.model_info import ModelInfo

STATE = {
    "adamw": "fp32 master weights and moments",
    "adamw_bf16": "bf16 moments, stochastic rounding",
}


def banner(
    config: FinetuneConfig,
    info: ModelInfo,
    data: PrepareSummary,
    trainer: Any,
    dtype: str,
    device: str,
) -> dict[str, str]:
    """Label and text of each line, in order."""
    train = data.splits["train"]
    rows, micro = config.per_device_train_batch_size, config.gradient_accumulation_steps
    return {
        "model": f"{info.architecture} from {config.model}",
        "parameters": f"{count(info.parameters)}, {count(info.active_parameters)} active a token; "
        + _trained(config, info),
        "data": f"{train.documents:,} documents, {train.tokens:,} tokens, "
        + f"{share(train.trained_tokens, train.tokens)} of them trained",
        "a step": f"up to {rows * micro * config.max_length:,} tokens: {micro} micro-batches of {rows} rows "
        + f"of {config.max_length}; {trainer.total_steps()} steps",
        "packing": _packing(config),
        "learning": f"{config.optim}, rate {config.learning_rate:g} {config.lr_scheduler_type}, "
        + f"clip {config.max_grad_norm:g}",
        "balance loss": balance_line(config, info),
        "precision": f"{dtype} on {device}; {STATE[config.optim]}; recompute {config.recompute}",
        "saves to": f"{config.output_dir} (model, checkpoint-*, metrics.jsonl, index.html)",
        "resume": _resume(config, trainer),
    }


def show(lines: dict[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", justify="right")
    table.add_column()
    for label, text in lines.items():
        table.add_row(label, text)
    console.print(table)


def balance_line(config: FinetuneConfig, info: ModelInfo) -> str:
    """Says on or off and the coefficient, whatever the flags hang off."""
    if not info.experts:
        return "none: the model has no experts"
    on = info.aux_loss_in_config if config.router_aux_loss is None else config.router_aux_loss
    why = "config: output_router_logits" if config.router_aux_loss is None else "router_aux_loss"
    if not on:
        return f"off ({why} is false; turn on with --router-aux-loss)"
    return f"on, coefficient {info.aux_loss_coefficient:g} ({why}); logged apart from the loss"


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "-"


def _trained(config: FinetuneConfig, info: ModelInfo) -> str:
    if config.use_peft:
        frozen = "; experts and router frozen" if info.experts else ""
        return f"LoRA of rank {config.lora_r} on {', '.join(config.lora_target_modules)}{frozen}"
    return f"all trained but {', '.join(config.freeze)}" if config.freeze else "all trained"


def _packing(config: FinetuneConfig) -> str:
    if not config.packing:
        return "off: one document a row"
    return "on, boundaries kept: no document sees another"


def _resume(config: FinetuneConfig, trainer: Any) -> str:
    step = trainer.resumed_step()
    if step:
        return f"went on from checkpoint-{step}; {trainer.total_steps() - step} steps to go"
    if config.resume_from_checkpoint == "never":
        return "fresh start (resume_from_checkpoint: never)"
    return "the same command again goes on from the newest checkpoint"
