"""The names of folders and files of runs. A job with one model has `model.safetensors`; a job with
several models has a file for each, such as `model-critic.safetensors`."""

from collections.abc import Iterable, Sequence

from polyrhythm.errors import StoreError

RUNS_FOLDER = "runs"
"""The usual folder of runs, in the folder where a command is called."""
SUFFIX = ".safetensors"
MODEL = f"model{SUFFIX}"
BEST = f"model-best{SUFFIX}"


def file_of(model: str = "", *, best: bool = False) -> str:
    """The name of the file of a model. `model`: its name, if the job has several. `best`: the file
    of the best model, which a job with `--keep-best` keeps."""
    file = BEST if best else MODEL
    return f"{file.removesuffix(SUFFIX)}-{model}{SUFFIX}" if model else file


def files_of(models: Sequence[str], *, best: bool = False) -> str:
    """The files of these models as one text, which a shell expands to their names. If `models` is
    empty, the name of the job's only model file."""
    return file_of("{" + ",".join(models) + "}" if models else "", best=best)


def models_of(files: str) -> list[str]:
    """The names of the models in a text that `files_of` has made."""
    if not files.endswith("}" + SUFFIX):
        return []
    return files.removesuffix("}" + SUFFIX).rpartition("{")[2].split(",")


def named(file: str, *, best: bool = False) -> str | None:
    """The model to which the file with this name belongs; None if the file does not belong to a job
    with several models."""
    prefix = f"{file_of(best=best).removesuffix(SUFFIX)}-"
    name = file.removesuffix(SUFFIX).removeprefix(prefix)
    known = name.isidentifier() and (best or name != "best")
    return name if known and file == file_of(name, best=best) else None


def choose(model: str | None, there: Iterable[str], *, best: bool = False) -> str:
    """The name of the file of this model; `model` is None for a job with one model. `there`: the
    files of the run. Raises StoreError if the job has no such model."""
    names = sorted(name for file in there if (name := named(file, best=best)) is not None)
    if model is None and names:
        raise StoreError(f"the job has several models: name one of {', '.join(names)}")
    if model is not None and model not in names:
        known = ", ".join(names) if names else "one model, without a name"
        raise StoreError(f"there is no model {model!r}: the job has {known}")
    return file_of(model or "", best=best)
