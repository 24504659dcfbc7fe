"""Finds the value of a flag: on the command line, otherwise in the environment, then in a file,
then the default.

This applies to all flags of a command of the class `ConfiguredCommand`. The flag `--local-steps` is
`POLYRHYTHM_LOCAL_STEPS` in the environment and `local-steps` (or `local_steps`) in the file. The
`[set]` table of the file is the flag `--set`.
"""

import json
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from polyrhythm.api.options import ALIKE, Option, nearest, options_of
from polyrhythm.api.training import train
from polyrhythm.cli.help import GroupedCommand
from polyrhythm.errors import UsageError

DEFAULT_FILE = Path("polyrhythm.toml")
_PREFIX = "POLYRHYTHM_"
_UNSET = ("config", "show-config", "help", "help-all")
"""Flags that cannot be set in the file."""
_FILE = "polyrhythm.config"
"""The key under which a context keeps the path of its configuration file."""


class ConfiguredCommand(GroupedCommand):
    """A command whose parameters can be set by environment variables named after its flags."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for param in self.params:
            param.envvar = _PREFIX + _in_capitals(_key(param))
            param.show_envvar = False  # type: ignore[attr-defined]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _check_environment(os.environ, {*map(_key, self.params), *_of_train()})
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            origin = _origin(ctx, error.param)
            if origin is None:
                raise
            key = _key(error.param)
            raise UsageError(f"{origin}: {key!r} is wrong: {error.message}") from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command. If it refuses an option that is not from the command line, say where the
        option is from."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            flag = str(error).partition(" ")[0]
            param = next((param for param in self.params if flag in param.opts), None)
            origin = _origin(ctx, param)
            if origin is None:
                raise
            raise UsageError(f"{origin}: {error}") from None

    def _called(self, ctx: Any, param: Any) -> str:
        origin = _origin(ctx, param)
        return super()._called(ctx, param) if origin is None else f"{origin}: {_key(param)!r}"


class OwnOptionsCommand(ConfiguredCommand):
    """A `ConfiguredCommand` that also has all options of `train`. Its help does not repeat them."""

    def _listed(self) -> dict[str, Option]:
        of_train = options_of(train)
        return {name: each for name, each in super()._listed().items() if name not in of_train}


def read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """The callback of the flag `--config`, which is read before all other flags. The values of the file
    become the defaults of the other flags."""
    if ctx.resilient_parsing:
        return path
    if path is None and not DEFAULT_FILE.is_file():
        return None
    path = path or DEFAULT_FILE
    ctx.meta[_FILE] = path
    ctx.default_map = defaults_from(load_file(path), _known(ctx), path)
    for param in ctx.command.params:
        value = ctx.default_map.get(str(param.name))
        multiple = getattr(param, "multiple", False)
        if multiple and isinstance(value, str):
            ctx.default_map[str(param.name)] = [value]
        # a flag such as --devices takes its list as one text, such as cuda:0,cpu
        elif not multiple and isinstance(value, list):
            ctx.default_map[str(param.name)] = ",".join(value)
    return path


def load_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None


def defaults_from(values: dict[str, Any], known: dict[str, str], path: Path) -> dict[str, Any]:
    """The values of the file by the names of the command's parameters. `known` maps a key of the
    file to such a name. Settings that only `train` has are ignored, because `serve` reads the same
    file."""
    defaults = {}
    for key, value in values.items():
        setting = key.replace("_", "-")
        if setting in known:
            defaults[known[setting]] = _as_given(value)
        elif setting not in _of_train():
            near = nearest(setting, known, ALIKE)
            advice = (
                "your own options belong in its table [set]"
                if near is None
                else f"the nearest is {near!r}"
            )
            raise UsageError(f"{path}: there is no setting {key!r}; {advice}")
    return defaults


def _of_train() -> frozenset[str]:
    """The settings of `train`: its options, and its argument."""
    return frozenset({"job", *(name.replace("_", "-") for name in options_of(train))})


def _check_environment(variables: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError if the name of a variable is almost that of a setting. Variables with other
    names may belong to other programs."""
    names = {_in_capitals(key) for key in known}
    for variable in variables:
        name = variable.removeprefix(_PREFIX)
        if name == variable or name in names:
            continue
        near = nearest(name, names, ALIKE)
        if near is not None:
            raise UsageError(f"there is no setting {variable}; the nearest is {_PREFIX}{near}")


def _in_capitals(key: str) -> str:
    return key.replace("-", "_").upper()


def _as_given(value: Any) -> Any:
    """The value as a user would write it on the command line, so that it is checked in the same
    way."""
    if isinstance(value, dict):
        return [f"{key}={_as_given(item)}" for key, item in value.items()]
    if isinstance(value, list):
        return [str(_as_given(item)) for item in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _known(ctx: typer.Context) -> dict[str, str]:
    keys = {_key(param): str(param.name) for param in ctx.command.params}
    return {key: name for key, name in keys.items() if key not in _UNSET}


def _key(param: Any) -> str:
    """The key of a parameter in the file: the flag without its dashes, or the name of an
    argument."""
    flags = [flag for flag in param.opts if flag.startswith("--")]
    return str(flags[0][2:] if flags else param.name)


def _origin(ctx: Any, param: Any) -> str | None:
    """The file or the environment variable that set this parameter; None if neither did."""
    source = None if param is None else ctx.get_parameter_source(param.name)
    match "" if source is None else source.name:
        case "ENVIRONMENT":
            return str(param.envvar)
        case "DEFAULT_MAP":
            return str(ctx.meta[_FILE])
    return None


def given_of(ctx: typer.Context, options: dict[str, Any]) -> dict[str, Any]:
    """The options that the user has given: on the command line, in the environment or in the
    file."""
    source = ctx.get_parameter_source
    return {
        name: value
        for name, value in options.items()
        if (found := source(name)) is not None and found.name != "DEFAULT"
    }


def shown_config(
    ctx: typer.Context, from_job: tuple[str, dict[str, Any]] = ("", {})
) -> list[dict[str, Any]]:
    """Every setting with its value and its source. `from_job`: the settings from the job's
    DEFAULTS, and the name of their source."""
    rows = []
    job, of_job = from_job
    for param in ctx.command.params:
        key, name = _key(param), str(param.name)
        if key in _UNSET:
            continue
        source = ctx.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        origin = _origin(ctx, param) or ("command line" if given else "default")
        value = ctx.params.get(name)
        if name in of_job:
            value, origin = of_job[name], job
        rows.append({"setting": key, "value": value, "from": origin})
    return rows


def print_config(
    ctx: typer.Context, from_job: tuple[str, dict[str, Any]] = ("", {}), *, as_json: bool
) -> None:
    """Print every setting of the command with its value and its source."""
    rows = shown_config(ctx, from_job)
    if as_json:
        print(json.dumps(rows, default=str))
        return
    for row in rows:
        value = "-" if row["value"] is None else row["value"]
        print(f"{row['setting']:18} {value!s:24} {row['from']}")
