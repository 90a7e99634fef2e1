"""`automoe finetune` from the first line to the last: prepare, train, save, prove, report."""

import gc
import json
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from automoe.console import console, stage
from automoe.data.cache import prepare_once
from automoe.data.describe import describe
from automoe.data.folder import PreparedFolder
from automoe.data.prepare import PrepareSummary
from automoe.finetune.banner import banner, show
from automoe.finetune.config import FinetuneConfig
from automoe.finetune.loop import StopFlag, stop_on_signals, train
from automoe.finetune.samples import Question, answers, questions
from automoe.finetune.saving import (
    compare,
    complete_folder,
    end_tokens,
    load_plain,
    name_base_model,
    read_json,
    require_peft,
    write_json,
)
from automoe.model_info import ModelInfo, model_info
from automoe.report import write_report
from automoe.source import load_tokenizer, local_folder, quiet_transformers


def finetune(config: FinetuneConfig) -> Path | None:
    """Fine-tunes and saves; returns the report, or None if a signal ended training early."""
    quiet_transformers()
    with stop_on_signals() as stop:
        return _Run(config).run(stop)


class _Run:
    def __init__(self, config: FinetuneConfig) -> None:
        self.config, self.out = config, config.output_dir
        self.source = local_folder(config.model)
        if self.out.exists() and self.out.samefile(self.source):
            raise ValueError(f"[finetune] {self.out} is the model itself; choose another --out")
        self.tokenizer = load_tokenizer(self.source, config.chat_template)
        if config.use_peft and not config.merge_adapter and (config.verify or config.prompts):
            require_peft()
        self.dtype, self.device = placement(config)
        self.info: ModelInfo = model_info(self.source)
        self.record: dict[str, Any] = {}
        self.trainer: Any = None

    def run(self, stop: StopFlag) -> Path | None:
        data = self._prepare()
        if data.reused and self.config.resume_from_checkpoint == "auto" and self._finished_before():
            console.print("all of it is done; --resume-from-checkpoint never begins anew")
            self.record = read_json(self.out / "run.json")
            self._show_samples()
            self._show_places()
            return self.out / "index.html"
        self._warn_of_untrained_end(data.eos_token_ids)
        held_out = PreparedFolder(self.out / "data" / "eval") if "eval" in data.splits else None
        asked = questions(self.config, self.tokenizer, held_out)
        self.trainer = self._load_trainer(held_out is not None)
        lines = banner(self.config, self.info, data, self.trainer, self.dtype, self.device)
        show(lines)
        self._begin(lines, data, asked, held_out is not None)
        console.print("[bold cyan]•[/] training; Ctrl-C or SIGTERM saves a checkpoint and leaves")
        if not train(self.trainer, stop):
            console.print("go on with the same command, or --resume-from-checkpoint FOLDER")
            return None
        return self._finish(data, asked, held_out is not None)

    def _warn_of_untrained_end(self, taught: list[int]) -> None:
        """LoRA leaves embedding and head alone: a new end token may never become likely."""
        new = [i for i in taught if i not in end_tokens(self.source)]
        if self.config.use_peft and new:
            names = ", ".join(map(repr, self.tokenizer.convert_ids_to_tokens(new)))
            console.print(
                f"  [yellow]note:[/] the chats end with {escape(names)}, which does not yet end this "
                "model's answers; LoRA trains neither its embedding nor the head, so the model may not "
                "learn to stop. Fine-tune a chat model, or train without --use-peft"
            )

    def _prepare(self) -> PrepareSummary:
        with stage(f"preparing {self.config.data}"):
            data = prepare_once(self.config.prepare_config(self.out / "data"), self.tokenizer)
            if data.reused:
                console.print("  found as prepared before")
            describe(data)
        return data

    def _load_trainer(self, has_eval: bool) -> Any:
        from automoe import engine

        with stage(f"loading {self.config.model}"):
            options = self.config.train_config(has_eval)
            return engine.Trainer(
                str(self.source),
                options,
                dtype=self.dtype,
                device=self.device,
                lora=self.config.lora_config(),
            )

    def _begin(
        self, lines: dict[str, str], data: PrepareSummary, asked: list[Question], has_eval: bool
    ) -> None:
        """What a later report needs of the time before the first step; kept for resumed runs."""
        old = read_json(self.out / "run.json")
        if self.trainer.resumed_step() and old:
            self.record = {**old, "settings": self._settings(), "banner": lines, "finished": False}
            return
        record: dict[str, Any] = {
            "settings": self._settings(),
            "banner": lines,
            "data": {name: vars(split) for name, split in data.splits.items()},
            "samples": [],
        }
        if asked:
            with stage("answering before training"):
                before = self._answers(self.source, asked, data.eos_token_ids)
            record["samples"] = [
                {"prompt": q.shown, "reference": q.reference, "before": a}
                for q, a in zip(asked, before, strict=True)
            ]
        if has_eval:
            with stage("held-out loss before training"):
                record["eval_before"] = self.trainer.evaluate()
                console.print(f"  {_evaluation(record['eval_before'])}")
        self.record = record
        self._write_record()

    def _write_record(self) -> None:
        write_json(self.out / "run.json", self.record)

    def _answers(self, folder: Path, asked: list[Question], eos: list[int]) -> list[str]:
        model = load_plain(folder, self.dtype, self.device)
        return answers(model, self.tokenizer, asked, self.config.max_new_tokens, eos)

    def _finish(self, data: PrepareSummary, asked: list[Question], has_eval: bool) -> Path:
        with stage(f"saving {self.out}"):  # first of all: whatever fails later, the weights are safe
            if self.config.merge_adapter:
                self.trainer.merge_adapter()
            self.trainer.save_pretrained(str(self.out))
            if self.config.use_peft and not self.config.merge_adapter:
                name_base_model(self.out, self.config.model)
            new_template = self.config.chat_template is not None
            complete_folder(
                self.out, self.source, self.tokenizer, data.eos_token_ids, new_template=new_template
            )
        if has_eval:
            with stage("held-out loss after training"):
                self.record["eval_after"] = self.trainer.evaluate()
                before = self.record.get("eval_before")  # none where a stopped run had no held-out data
                arrow = f"{_evaluation(before)} -> " if before else ""
                console.print(f"  {arrow}[bold]{_evaluation(self.record['eval_after'])}[/]")
        probe = _probe(self.out / "data" / ("eval" if has_eval else "train"))
        expected = self.trainer.logits(probe) if self.config.verify else None
        self.trainer = None  # before a second copy of the weights is loaded
        gc.collect()
        self._prove(probe, expected, asked, data.eos_token_ids)
        self.record["finished"] = True
        self._write_record()
        report = write_report(self.out, self.record)
        self._show_samples()
        self._show_places()
        return report

    def _show_places(self) -> None:
        report = self.out / "index.html"
        console.print(f"model  [bold]{self.out}[/]\nreport [bold]{report}[/]", soft_wrap=True)

    def _settings(self) -> dict[str, Any]:
        weights = [file.stat() for file in sorted(self.source.glob("*.safetensors"))]
        return {
            **json.loads(self.config.model_dump_json()),
            "model_files": [f"{s.st_size} bytes of {s.st_mtime_ns}" for s in weights],
        }

    def _finished_before(self) -> bool:
        """Whether this very run, settings and model files included, is complete in the output folder."""
        old = read_json(self.out / "run.json")
        return bool(old.get("finished")) and old["settings"] == self._settings()

    def _prove(self, probe: list[int], expected: Any, asked: list[Question], eos: list[int]) -> None:
        if expected is None and not asked:
            return
        with stage("reloading with plain Transformers"):
            model = load_plain(self.out, self.dtype, self.device)
            if expected is not None:
                result = compare(model, probe, expected, self.dtype)
                self.record["verification"] = str(result)
                console.print(f"  [{'green' if result.agrees else 'bold red'}]{result}[/]", soft_wrap=True)
                if not result.agrees:
                    raise RuntimeError(f"[finetune] {self.out} does not reload as it was trained: {result}")
            after = answers(model, self.tokenizer, asked, self.config.max_new_tokens, eos)
        for sample, answer in zip(self.record["samples"], after, strict=False):
            sample["after"] = answer

    def _show_samples(self) -> None:
        for sample in self.record["samples"]:
            console.print(f"\n[bold]{escape(sample['prompt'])}[/]")
            table = Table.grid(padding=(0, 2))
            for label in ("before", "after", "reference"):
                if sample.get(label):
                    table.add_row(f"  [dim]{label}[/]", escape(sample[label]))
            console.print(table)
        console.print()


def placement(config: FinetuneConfig) -> tuple[str, str]:
    """dtype and device by name."""
    import torch

    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"[finetune] device {device} asked for, but torch finds no GPU; see automoe doctor")
    dtype = config.dtype if config.dtype != "auto" else "float32" if device == "cpu" else "bfloat16"
    return dtype, device


def _probe(folder: Path) -> list[int]:
    """Tokens whose logits are compared: the first document, at most 128 of it."""
    return PreparedFolder(folder).document(0)[0][:128].tolist()


def _evaluation(metrics: dict[str, Any]) -> str:
    return f"loss {metrics['loss']:.4f} (perplexity {metrics['perplexity']:.2f})"
