"""Settings as pydantic models: from YAML, from flags, and an unknown key names the nearest known one."""

import inspect
import types
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import typer
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

S = TypeVar("S", bound="Settings")
SHORT = ("out", "lr", "epochs", "tokenizer")  # aliases that are flags too


class Settings(BaseModel):
    """Base of all settings. `aliases` maps other tools' words to ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    aliases: ClassVar[dict[str, str]] = {}

    @classmethod
    def build(cls: type[S], values: dict[str, Any], where: str = "settings") -> S:
        """Checks values. Throws ValueError that names each wrong key and what to write instead."""
        named: dict[str, Any] = {}
        for key, value in values.items():
            name = cls.aliases.get(str(key), str(key)).replace("-", "_")
            if name not in cls.model_fields:
                raise ValueError(f"[{where}] unknown key '{key}'{cls._nearest(name)}")
            if name in named:
                raise ValueError(f"[{where}] '{name}' is given twice, once as '{key}'")
            named[name] = value
        try:
            return cls(**named)
        except ValidationError as error:
            lines = [
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {e['input']!r}" for e in error.errors()
            ]
            raise ValueError(f"[{where}] " + "; ".join(lines)) from None

    @classmethod
    def from_yaml(cls: type[S], path: Path | None, flags: dict[str, Any]) -> S:
        """The file's values with the flags that were given on top."""
        values: dict[str, Any] = {}
        if path is not None:
            if not path.is_file():
                raise ValueError(f"[config] {path} does not exist")
            try:
                values = yaml.safe_load(path.read_text()) or {}
            except yaml.YAMLError as error:
                raise ValueError(f"[config] {path} is no valid YAML: {error}") from None
            if not isinstance(values, dict):
                raise ValueError(f"[config] {path} must hold keys and values, got {type(values).__name__}")
        given = {name: value for name, value in flags.items() if value is not None and value != []}
        hidden = {key for key in values if cls.aliases.get(str(key), str(key)) in given}
        kept = {key: value for key, value in values.items() if key not in hidden}
        return cls.build({**kept, **given}, str(path or "options"))

    @classmethod
    def _nearest(cls, name: str) -> str:
        near = get_close_matches(name, [*cls.model_fields, *cls.aliases], n=1, cutoff=0.6)
        if near:
            return f"; did you mean '{near[0]}'?"
        return f"; known are {', '.join(sorted(cls.model_fields))}"


def flags_of(
    settings: type[Settings], positional: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command `(config: Path | None, flags: dict)` one flag for every field of the settings."""

    def decorate(command: Callable[[Path | None, dict[str, Any]], Any]) -> Callable[..., Any]:
        def run(config: Path | None = None, **flags: Any) -> Any:
            return command(config, flags)

        file = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; flags win over it.")]
        parameters = [
            inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=file)
        ]
        for name, field in settings.model_fields.items():
            annotation = Annotated[
                _flag_type(field.annotation), _parameter(settings, name, name == positional)
            ]
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            )
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__doc__, run.__name__ = command.__doc__, command.__name__
        return run

    return decorate


def _parameter(settings: type[Settings], name: str, positional: bool) -> Any:
    field = settings.model_fields[name]
    if positional:
        return typer.Argument(help=field.description, show_default=False)
    shown = None if field.is_required() else _shown(field.get_default(call_default_factory=True))
    return typer.Option(*_spellings(settings, name), help=field.description, show_default=shown or False)


def _spellings(settings: type[Settings], name: str) -> list[str]:
    flag = name.replace("_", "-")
    if _flag_type(settings.model_fields[name].annotation) == (bool | None):
        return [f"--{flag}/--no-{flag}"]
    short = [a for a, target in settings.aliases.items() if target == name and a in SHORT]
    return [f"--{flag}", *(f"--{alias}" for alias in short)]


def _shown(default: Any) -> str | None:
    if default is None or default == [] or default is False:
        return None
    return str(default)


def _flag_type(annotation: Any) -> Any:
    """The type typer parses; None means that the flag was not given."""
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    if get_origin(annotation) is Literal:
        return str | None
    if get_origin(annotation) is list:
        return list[str] | None
    return annotation | None
