"""Fixtures that several tests share."""

import pytest
from tiny_tokenizers import FAMILIES, make_tokenizer


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture
def tokenizer(family):
    return make_tokenizer(family)


@pytest.fixture
def qwen3():
    return make_tokenizer("qwen3")
