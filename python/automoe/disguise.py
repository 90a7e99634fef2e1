"""Subclasses that pass for their base: same name and module, and pickle, deepcopy and torch.save work."""

import functools
from typing import Any


@functools.cache
def disguised(base: type, mixin: type) -> type:
    """A subclass of `mixin` and `base` that calls itself `base`."""
    namespace = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    namespace["__reduce_ex__"] = _reduce
    namespace["_disguise"] = (base, mixin)
    return type(base)(base.__name__, (mixin, base), namespace)


def undisguised(cls: type) -> type:
    return getattr(cls, "_disguise", (cls,))[0]


def _reduce(self: Any, protocol: int) -> tuple:
    cls = type(self)
    plain = super(cls._disguise[1], self).__reduce_ex__(max(protocol, 2))
    if "_disguise" not in vars(cls):  # somebody's own subclass, found under its own name
        return plain
    # Under our class's name one finds its base, so the pair that makes the class is stored instead.
    return _new, cls._disguise, *plain[2:]


def _new(base: type, mixin: type) -> Any:
    cls = disguised(base, mixin)
    return cls.__new__(cls)
