"""Tiny tokenizers with the chat templates of the big ones, trained in a blink on a few sentences."""

from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parents[1] / "fixtures" / "templates"
SENTENCES = [
    "What is the capital of France?",
    "The capital of France is Paris.",
    "Tell me more, please!",
] * 3
SPECIALS = {  # family -> bos, eos, all others
    "chatml": ("<|im_start|>", "<|im_end|>", ["<|endoftext|>"]),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"]),
    "mistral": (
        "<s>",
        "</s>",
        [
            "[INST]",
            "[/INST]",
            "[TOOL_CALLS]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ],
    ),
    "gemma": ("<bos>", "<eos>", ["<start_of_turn>", "<end_of_turn>"]),
    "qwen3": (None, "<|im_end|>", ["<|endoftext|>", "<|im_start|>"]),
}
FAMILIES = list(SPECIALS)


@cache
def _backend(family: str) -> str:
    bos, eos, others = SPECIALS[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[token for token in (bos, eos, *others) if token],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    if family in ("llama3", "mistral", "gemma"):  # these add their first token to plain text
        first = tokenizer.token_to_id(bos)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, first)]
        )
    return tokenizer.to_str()


def make_tokenizer(family: str) -> PreTrainedTokenizerFast:
    bos, eos, _ = SPECIALS[family]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(_backend(family)), eos_token=eos)
    if bos and family != "chatml":
        tokenizer.bos_token = bos
    tokenizer.pad_token = eos  # what many fine-tunes do; nothing may depend on it
    tokenizer.chat_template = (TEMPLATES / f"{family}.jinja").read_text()
    return tokenizer
