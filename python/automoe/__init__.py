"""automoe: fine-tune Hugging Face causal language models, Mixture-of-Experts first, by changing one import.

    from automoe import AutoModelForCausalLM

Importing the package is cheap: Transformers and the engine are loaded by the first use of a model class.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

#: For C++ users: cmake -DCMAKE_PREFIX_PATH=$(python -c "import automoe; print(automoe.cmake_prefix_path)")
cmake_prefix_path = str(Path(__file__).parent)

_LAZY = {
    "AdamW": "automoe.optim",
    "AutoModelForCausalLM": "automoe.model",
    "FallbackWarning": "automoe.status",
}

__all__ = ["AdamW", "AutoModelForCausalLM", "FallbackWarning", "__version__", "cmake_prefix_path"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'automoe' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
