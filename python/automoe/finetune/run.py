"""`automoe finetune` from the first line to the last: prepare, train, save, prove, report."""

import gc
import json
from pathlib import Path
from typing import Any

from automoe.console import console, stage
from automoe.data.cache import prepare_once
from automoe.data.describe import describe
from automoe.data.folder import PreparedFolder
from automoe.data.prepare import PrepareSummary
from automoe.finetune.banner import banner, show
from automoe.finetune.config import FinetuneConfig
from automoe.finetune.loop import StopFlag, stop_on_signals, train
from automoe.finetune.samples import Question, answers, questions
from automoe.finetune.saving import compare, complete_folder, load_plain
from automoe.model_info import ModelInfo, model_info
from automoe.report import write_report
from automoe.source import load_tokenizer, local_folder


def finetune(config: FinetuneConfig) -> Path | None:
    """Fine-tunes and saves; returns the report, or None if a signal ended training early."""
    with stop_on_signals() as stop:
        return _Run(config).run(stop)


class _Run:
    def __init__(self, config: FinetuneConfig) -> None:
        self.config, self.out = config, config.output_dir
        self.source = local_folder(config.model)
        self.tokenizer = load_tokenizer(self.source, config.chat_template)
        self.dtype, self.device = placement(config)
        self.info: ModelInfo = model_info(self.source)
        self.record: dict[str, Any] = {}

    def run(self, stop: StopFlag) -> Path | None:
        data = self._prepare()
        held_out = PreparedFolder(self.out / "data" / "eval") if "eval" in data.splits else None
        asked = questions(self.config, self.tokenizer, held_out)
        trainer = self._trainer(held_out is not None)
        lines = banner(self.config, self.info, data, trainer, self.dtype, self.device)
        show(lines)
        self._begin(trainer, lines, data, asked, held_out is not None)
        console.print("[bold cyan]•[/] training; Ctrl-C or SIGTERM saves a checkpoint and leaves")
        if not train(trainer, stop):
            console.print("go on with the same command, or --resume-from-checkpoint FOLDER")
            return None
        return self._finish(trainer, data, asked, held_out is not None)

    def _prepare(self) -> PrepareSummary:
        with stage(f"preparing {self.config.data}"):
            data = prepare_once(self.config.prepare_config(), self.tokenizer)
            if data.reused:
                console.print("  found as prepared before")
            describe(data)
        return data

    def _trainer(self, has_eval: bool) -> Any:
        from automoe import engine

        with stage(f"loading {self.config.model}"):
            options = self.config.train_config(has_eval)
            return engine.Trainer(str(self.source), options, dtype=self.dtype, device=self.device)

    def _begin(
        self,
        trainer: Any,
        lines: dict[str, str],
        data: PrepareSummary,
        asked: list[Question],
        has_eval: bool,
    ) -> None:
        """What a later report needs of the time before the first step; kept for resumed runs."""
        file = self.out / "run.json"
        if trainer.resumed_step() and file.is_file():
            self.record = json.loads(file.read_text())
            return
        record: dict[str, Any] = {
            "settings": json.loads(self.config.model_dump_json()),
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
                record["eval_before"] = trainer.evaluate()
                console.print(f"  {_evaluation(record['eval_before'])}")
        self.record = record
        self._write_record()

    def _write_record(self) -> None:
        temporary = self.out / "run.json.tmp"
        temporary.write_text(json.dumps(self.record, indent=2) + "\n")
        temporary.replace(self.out / "run.json")

    def _answers(self, folder: Path, asked: list[Question], eos: list[int]) -> list[str]:
        model = load_plain(folder, self.dtype, self.device)
        return answers(model, self.tokenizer, asked, self.config.max_new_tokens, eos)

    def _finish(self, trainer: Any, data: PrepareSummary, asked: list[Question], has_eval: bool) -> Path:
        if has_eval:
            with stage("held-out loss after training"):
                self.record["eval_after"] = trainer.evaluate()
                before = self.record.get("eval_before")
                arrow = f"{_evaluation(before)} -> " if before else ""
                console.print(f"  {arrow}[bold]{_evaluation(self.record['eval_after'])}[/]")
        with stage(f"saving {self.out}"):
            trainer.save_pretrained(str(self.out))
            complete_folder(
                self.out,
                self.tokenizer,
                data.eos_token_ids,
                new_template=self.config.chat_template is not None,
            )
        probe = _probe(self.out / "data" / ("eval" if has_eval else "train"))
        expected = trainer.logits(probe) if self.config.verify else None
        del trainer  # before a second copy of the weights is loaded
        gc.collect()
        self._prove(probe, expected, asked, data.eos_token_ids)
        self._write_record()
        report = write_report(self.out, self.record)
        self._show_samples()
        console.print(f"model  [bold]{self.out}[/]\nreport [bold]{report}[/]")
        return report

    def _prove(self, probe: list[int], expected: Any, asked: list[Question], eos: list[int]) -> None:
        if expected is None and not asked:
            return
        with stage("reloading with plain Transformers"):
            model = load_plain(self.out, self.dtype, self.device)
            if expected is not None:
                result = compare(model, probe, expected, self.dtype)
                self.record["verification"] = str(result)
                console.print(f"  [{'green' if result.agrees else 'bold red'}]{result}[/]")
                if not result.agrees:
                    raise RuntimeError(f"[finetune] {self.out} does not reload as it was trained: {result}")
            after = answers(model, self.tokenizer, asked, self.config.max_new_tokens, eos)
        for sample, answer in zip(self.record["samples"], after, strict=False):
            sample["after"] = answer

    def _show_samples(self) -> None:
        for sample in self.record["samples"]:
            console.print(f"\n[bold]{sample['prompt']}[/]", markup=True)
            for label in ("before", "after", "reference"):
                if sample.get(label):
                    console.print(f"  [dim]{label:9}[/] ", end="")
                    console.print(sample[label].replace("\n", "\n" + " " * 12), markup=False)
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
