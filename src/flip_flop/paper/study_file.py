"""The YAML file of a study, validated by pydantic."""

import re
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from flip_flop.errors import InputError, nearest
from flip_flop.method import BASE, METHODS, find_method
from flip_flop.method.settings import PAPER_METHODS, TrainingProtocol
from flip_flop.paper.study import (
    PROTOCOLS,
    MethodVariant,
    Names,
    Seeds,
    Settings,
    Size,
    Study,
    Subsets,
    known_methods,
    plain_fields,
    require_known,
)
from flip_flop.strict_yaml import read_yaml

CATALOG = Path(__file__).parent / "catalog"
# Shared folders of all studies. Earlier versions wrote claims/.
RESERVED = ("trainings", "audits", "logs", "claims", "slurm")
# Default colours of variants: those of Okabe and Ito that the paper's methods do not have, then Tol's.
COLOURS = ("#0072b2", "#d55e00", "#332288", "#999933", "#882255", "#f0e442", "#44aa99", "#661100", "#aa4499", "#000000")

_Fields = Annotated[dict[str, Any], AfterValidator(plain_fields)]


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, content: Any) -> Any:
        return {key: value for key, value in content.items() if value is not None} if type(content) is dict else content


class _OpenBlock(_Block):
    """A block of settings: any other key is a setting."""

    model_config = ConfigDict(extra="allow", frozen=True)
    tasks: dict[str, _Fields] = {}

    @property
    def common(self) -> dict[str, Any]:
        return plain_fields(self.model_extra or {})

    @model_validator(mode="after")
    def _check_fields(self) -> "_OpenBlock":
        plain_fields(self.model_extra or {})
        return self


class _SettingsBlock(_OpenBlock):
    methods: dict[str, _Fields] = {}


class _VariantBlock(_OpenBlock):
    method: str
    title: str = ""
    colour: str = ""


class StudyFile(_Block):
    """A study's YAML file, as written."""

    name: Annotated[str, Field(pattern=r"^[\w-]+$")]
    tasks: Names
    methods: Names = ()
    seeds: Seeds = (0,)
    model: str | None = None
    description: str = ""
    cross: Names = ()
    template_subsets: dict[str, Subsets] = {}
    settings: _SettingsBlock = _SettingsBlock()
    limit: Size | None = None
    split: str = "test"
    protocol: str = "paper"
    variants: dict[str, _VariantBlock] = {}
    audit_held_out: StrictBool = False
    eval_limit: Size | None = None


def study_names() -> tuple[str, ...]:
    """Return the names of the shipped studies.

    Example:
        >>> study_names()
        ('base_spread', 'smoke', 'study1', 'study2', 'study3')
    """
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


def load_study(name: str) -> Study:
    """Read a shipped study by name, or a file. A file names task files relative to itself.

    Raises:
        InputError: ``E-STUDY-UNKNOWN``, ``E-STUDY-FILE``, ``E-STUDY-YAML``, ``E-STUDY-KEY`` or ``E-STUDY-VALUE``.
    """
    is_shipped = name in study_names()
    path, where = (CATALOG / f"{name}.yaml", f"study {name}") if is_shipped else (Path(name), name)
    if not path.is_file():
        hint = f"{nearest(name, study_names())} Or give the path of a YAML file."
        raise InputError("E-STUDY-UNKNOWN", f"there is no study {name!r}, and no file of this name.", hint)
    content = read_yaml(path, code="E-STUDY-YAML", file_code="E-STUDY-FILE")
    try:
        file = StudyFile.model_validate(content)
    except ValidationError as error:
        raise _input_error(error, where) from None
    owner = "all studies share" if file.name.lower() in RESERVED else "a shipped study has"
    if file.name.lower() in RESERVED or (not is_shipped and file.name.lower() in study_names()):
        hint = f"Give another name: this is a folder that {owner}."
        raise InputError("E-STUDY-VALUE", f"{where}: name is {file.name!r}.", hint)
    return _resolve(file, where, path.parent)


def _input_error(error: ValidationError, where: str) -> InputError:
    """Describe the first error."""
    errors = error.errors()
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    kind, value = first["type"], first["input"]
    # Members of a union are part of the location, too.
    place = [str(part) for part in first["loc"] if not re.match(r"(constrained|tuple|function|nullable)\W", str(part))]
    if kind == "extra_forbidden":
        known = Subsets.__dataclass_fields__ if place[0] == "template_subsets" else StudyFile.model_fields
        message = f"{', '.join([where, *place[:-1]])} has an unknown key {place[-1]!r}."
        return InputError("E-STUDY-KEY", message, nearest(place[-1], known))
    inside = ", ".join([where, *place])
    if kind == "value_error":
        return InputError("E-STUDY-VALUE", f"{inside}: {first['ctx']['error']}.")
    reason = first["msg"].replace("Input should", "It should", 1).replace("String should", "It should", 1)
    if kind == "missing":
        return InputError("E-STUDY-KEY", f"{inside} is missing.", "Add it.")
    code = "E-STUDY-VALUE" if kind in ("greater_than_equal", "less_than_equal", "int_type") else "E-STUDY-KEY"
    return InputError(code, f"{inside} is {value!r}. {reason}.")


def _resolve(file: StudyFile, where: str, folder: Path) -> Study:
    """Check names against each other, and make the paths of task files absolute."""
    block = file.settings
    for names, inside in (
        (file.cross, "cross"),
        (file.template_subsets, "template_subsets"),
        (block.tasks, "settings, tasks"),
        *((variant.tasks, f"variants, {name}, tasks") for name, variant in file.variants.items()),
    ):
        require_known(names, file.tasks, f"{where}, {inside}")
    require_known([file.protocol], PROTOCOLS, f"{where}, protocol")
    if file.cross and (file.template_subsets or file.audit_held_out):
        other = "template_subsets" if file.template_subsets else "audit_held_out"
        raise InputError("E-STUDY-KEY", f"{where} has cross and {other}.", "Make two studies of it.")
    variants = {
        name: _variant(name, each, COLOURS[number % len(COLOURS)], f"{where}, variants")
        for number, (name, each) in enumerate(file.variants.items())
    }
    methods = known_methods(file.methods, f"{where}, methods", variants) or (BASE.name, *PAPER_METHODS, *variants)
    trained = [name for name in (*METHODS, *methods, *variants) if name != BASE.name]
    require_known(block.methods, trained, f"{where}, settings, methods")
    files = {task for task in file.tasks if task.endswith((".yaml", ".yml")) or "/" in task}
    paths = {task: str((folder / task).resolve()) if task in files else task for task in file.tasks}
    own = {
        name: {**block.methods.get(each.method, {}), **each.common, **block.methods.get(name, {})}
        for name, each in file.variants.items()
    }
    return Study(
        name=file.name,
        tasks=tuple(paths.values()),
        methods=methods,
        seeds=file.seeds,
        model=file.model or None,
        description=file.description,
        cross=tuple(paths[task] for task in file.cross) or None,
        template_subsets={paths[task]: subsets for task, subsets in file.template_subsets.items()},
        settings=Settings(
            common=block.common,
            methods={**block.methods, **own},
            tasks={paths[task]: values for task, values in block.tasks.items()},
            pairs={
                name: {paths[task]: values for task, values in each.tasks.items()}
                for name, each in file.variants.items()
            },
        ),
        limit=file.limit,
        split=file.split or "test",
        protocol=cast(TrainingProtocol, file.protocol),
        variants=variants,
        audit_held_out=file.audit_held_out,
        eval_limit=file.eval_limit,
    )


def _variant(name: str, block: _VariantBlock, colour: str, where: str) -> MethodVariant:
    if name in (BASE.name, *METHODS) or not re.fullmatch("[A-Za-z0-9_-]+", name):
        hint = "Use letters, digits, - and _, and no method's name."
        raise InputError("E-STUDY-VALUE", f"{where}: a name is {name!r}.", hint)
    if ":" not in block.method:
        require_known([block.method], METHODS, f"{where}, {name}, method")
    find_method(block.method)
    if block.colour and not re.fullmatch("#[0-9A-Fa-f]{6}", block.colour):
        raise InputError("E-STUDY-VALUE", f"{where}, {name}: colour is {block.colour!r}.", "Write it as '#0072b2'.")
    return MethodVariant(block.method, block.title or name, block.colour or colour)
