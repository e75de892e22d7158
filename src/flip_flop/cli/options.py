"""The options of the command line as fields of dataclasses, and the objects that they describe."""

import contextlib
import functools
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click

from flip_flop.console import echo, is_first_process
from flip_flop.errors import InputError
from flip_flop.files import Json, check_output, lock_output
from flip_flop.hub import DEMO, check_model_name, check_shard, endpoint_of, is_cached, is_endpoint, is_local_name
from flip_flop.lazy import from_wing
from flip_flop.method.settings import Protocol
from flip_flop.metrics import CalibrationChoice, check_calibration
from flip_flop.scoring.options import DEFAULT_SCORING, DeviceMap, LoadIn, ScoringOptions, Shard
from flip_flop.tasks import Task, load_task, prior_from

if TYPE_CHECKING:
    from flip_flop.scoring.models import LoadedModel
    from flip_flop.scoring.scorer import Scorer

Command = Callable[..., Any]
EXPLAIN_HELP = "Also explain the columns of the table."
TEMPLATES_HELP = "NAME,NAME,... or `all` or `held_out`; by default all but the held-out ones."
CALIBRATE_HELP = (
    "Correct the label bias of each template (docs/calibration.md). auto: batch, if it changes a prediction."
)


def option(default: Any = MISSING, *, help: str | None = None, **details: Any) -> Any:
    """Return a dataclass field that :func:`options` turns into an option of the command line."""
    return field(default=default, metadata={"help": help, **details})


def options(*groups: type, optional: Collection[str] = ()) -> Callable[[Command], Command]:
    """Add the fields of dataclasses as options of a command, which gets an object of each class by position.

    Fields without a default are first in the help, and required if they are not ``optional``. The type of a field
    determines the option: ``bool`` is a flag, ``Literal`` a choice, ``tuple[str, ...]`` a repeatable option. The
    arguments of :func:`option` are ``help``, ``short`` (``-m``), ``flag`` (if it differs from the field's name),
    ``min`` (of an integer), and ``metavar``, ``envvar``, ``type`` and ``callback`` of click.
    """

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            built = [group(**{item.name: values.pop(item.name) for item in fields(group)}) for group in groups]
            return function(*built, **values)

        wrapped: Command = command
        items = [item for group in groups for item in fields(group)]
        for item in sorted(items, key=lambda item: item.default is not MISSING)[::-1]:
            wrapped = _click_option(item, is_required=item.name not in optional)(wrapped)
        return wrapped

    return decorate


def out_file(
    context: click.Context, option: click.Parameter, path: Path | None, suffixes: tuple[str, ...] = (), **how: bool
) -> Path | None:
    """Refuse an output that cannot be written, or has another suffix, before the command computes anything.

    Raises:
        InputError: ``E-OUT-PATH``.
    """
    if path is not None:
        if suffixes and path.suffix not in suffixes:
            raise InputError(
                "E-OUT-PATH", f"{path.name} is another kind of file.", f"End its name with {' or '.join(suffixes)}."
            )
        check_output(path, **how)
    return path


out_folder = functools.partial(out_file, is_folder=True)


def hold_new_file(out: Path, *, overwrite: bool) -> None:
    """Hold the lock of a new file until the command ends (``E-OUT-BUSY``, ``E-OUT-USED``)."""
    click.get_current_context().with_resource(lock_output(out))
    if out.exists() and not overwrite:
        raise InputError("E-OUT-USED", f"{out} exists already.", "Give another --out, or add --overwrite.")


def _click_option(item: Field[Any], *, is_required: bool) -> Callable[[Command], Command]:
    details = dict(item.metadata)
    names = [item.name, f"--{details.pop('flag', item.name).replace('_', '-')}"]
    if "short" in details:
        names.append(details.pop("short"))
    if "type" not in details:
        details |= _click_type(item.type, details.pop("min", None))
    no_default = {"required": is_required}
    details |= no_default if item.default is MISSING else {"default": item.default, "show_default": True}
    return click.option(*names, **details)


def _click_type(kind: Any, minimum: int | None) -> dict[str, Any]:
    if get_origin(kind) in (Union, UnionType):
        kind = next(member for member in get_args(kind) if member is not NoneType)
    if kind is bool:
        return {"is_flag": True}
    if kind is Path:
        return {"type": click.Path(path_type=Path)}
    if get_origin(kind) is Literal:
        return {"type": click.Choice(get_args(kind))}
    if get_origin(kind) is tuple:
        return {"multiple": True}
    if kind is int and minimum is not None:
        return {"type": click.IntRange(min=minimum)}
    return {"type": kind if kind in (int, float) else str}


def _require_defaults(options: Any, names: Collection[str], use: str) -> None:
    """Refuse options without effect (``E-ENDPOINT``)."""
    for item in fields(options):
        if item.name in names and getattr(options, item.name) != item.default:
            raise InputError("E-ENDPOINT", f"--{item.name.replace('_', '-')} applies only {use}.", "Remove it.")


@dataclass(frozen=True, kw_only=True)
class BaseModelOptions:
    """A model without an adapter."""

    model: str = option(short="-m", help="A hub name, a folder, a GGUF file, or `demo`.")
    revision: str | None = option(None, help="The model's commit, branch or tag on the hub.")
    dtype: str = option("auto", help="float32, bfloat16 or float16; auto: bfloat16 on a GPU.")
    device: str = option("auto", help="cpu, cuda, cuda:1, ...; auto: a GPU if available.")
    load_in: LoadIn | None = option(None, help="Quantize the weights, with bitsandbytes (docs/memory.md).")
    shard: Shard | None = option(
        None, help="Divide the weights between the processes of a launcher (docs/how-to/large-models.md)."
    )

    def check(self) -> None:
        """Refuse an invalid model name, revision, dtype, device or sharding before torch is imported."""
        check_model_name(self.model, self.revision, dtype=self.dtype, device=self.device)
        if self.shard is not None:
            check_shard(self.model, self.load_in, getattr(self, "device_map", None))

    def announce(self, *, quiet: bool = False) -> None:
        """Report on standard error that the model is loaded next, before seconds of imports."""
        if not quiet:
            is_here = self.model == DEMO or is_local_name(self.model) or is_cached(self.model, self.revision)
            echo(f"loading {self.model}{'' if is_here else ': it is downloaded from the hub first'}", err=True)
        else:
            from huggingface_hub.utils import disable_progress_bars

            disable_progress_bars()

    def load(self) -> "LoadedModel":
        """Load the model and its adapter, if any."""
        from flip_flop.scoring.models import load_model

        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "tokenizer"}
        return load_model(values.pop("model"), quantization_config=values.pop("load_in"), **values).keep_answers()


@dataclass(frozen=True, kw_only=True)
class ModelOptions(BaseModelOptions):
    """A model with or without an adapter."""

    model: str = option(short="-m", help="A hub name, a folder, a GGUF file, `demo`, or openai:URL#NAME (served).")
    adapter: Path | None = option(None, help="The adapter/ folder of a training run.")
    device_map: DeviceMap | None = option(None, help="auto: over all GPUs, then the CPU's memory (docs/memory.md).")
    tokenizer: str | None = option(
        None, help="Served models: a folder or hub name of a tokenizer, for its chat template."
    )

    def check(self, how: ScoringOptions = DEFAULT_SCORING) -> None:
        """Refuse missing adapter files, options that exclude each other, and options of the other kind of model."""
        from flip_flop.record import check_adapter_folder

        if is_endpoint(self.model):
            endpoint_of(self.model)
            use = f"to local models, but {self.model} is served"
            _require_defaults(self, {item.name for item in fields(self)} - {"model", "tokenizer"}, use)
            _require_defaults(how, {"backend", "batch_tokens"}, use)
            if self.tokenizer is not None:
                check_model_name(self.tokenizer)
            return
        if self.adapter is not None:
            check_adapter_folder(self.adapter)
        if self.device_map is not None and self.device != "auto":
            raise InputError(
                "E-MODEL-DEVICE",
                f"--device {self.device} and --device-map {self.device_map} are both given.",
                "Remove one of them.",
            )
        super().check()
        use = f"to served models, but {self.model} is local"
        _require_defaults(self, {"tokenizer"}, use)
        _require_defaults(how, {"by", "api", "concurrency"}, use)

    def scorer(self, *, quiet: bool = False) -> "Scorer":
        """Return the scorer of a local or served model. Each process of a launcher loads the model."""
        if is_endpoint(self.model):
            if not quiet and is_first_process():
                echo(f"asking {self.model}", err=True)  # before seconds of imports
            served: Scorer = from_wing("EndpointScorer")(self.model, self.tokenizer)
            return served
        self.announce(quiet=quiet or not is_first_process())
        from flip_flop.scoring.distributed import join_processes
        from flip_flop.scoring.scores import CausalLMScorer

        join_processes(self.device)
        return CausalLMScorer(self.load(), shared=True)


@dataclass(frozen=True, kw_only=True)
class TemplateOptions:
    """The templates of a task, and the axes along which they vary."""

    templates: str | None = option(None, help=TEMPLATES_HELP)
    axis: tuple[str, ...] = option(
        (),
        metavar="AXIS=VALUE",
        help="Vary the templates: order=4 or order=all, format=10, examples=4, typos=0.05 (docs/how-to/axes.md). "
        "Repeatable.",
    )

    @property
    def axes(self) -> Json:
        """The values by axis: numbers, texts, or more in JSON."""
        values = {}
        for text in self.axis:
            name, _, value = text.partition("=")
            values[name] = value
            with contextlib.suppress(ValueError):
                values[name] = json.loads(value)
        return values


@dataclass(frozen=True, kw_only=True)
class TaskOptions(TemplateOptions):
    """A task and its templates."""

    task: str = option(
        short="-t", help="A dataset of the paper (`flip-flop tasks list`), `promptsource:SET`, a task file, or `demo`."
    )


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The sources of the paper's datasets."""

    hub_mirror: Path | None = option(
        None,
        envvar="FLIP_FLOP_HUB_MIRROR",
        help="Read datasets from DIR/<repo>/<config>/<split>.parquet instead of the hub.",
    )
    story_cloze_dir: Path | None = option(
        None,
        envvar="FLIP_FLOP_STORY_CLOZE",
        help="The folder with the two CSV files of StoryCloze, which its owners provide.",
    )

    def open(
        self, task: str, templates: str | None, protocol: str = "paper", axes: Mapping[str, Any] | None = None
    ) -> Task:
        """Load a task with the given templates, their variants, and with the rows and prompts of a protocol.

        Datasets are always split with seed 0, so that no run trains on the validation rows of another run.
        """
        return load_task(
            task,
            templates=templates,
            hub_mirror=self.hub_mirror,
            story_cloze_dir=self.story_cloze_dir,
            protocol=protocol,
            axes=axes,
        )


@dataclass(frozen=True, kw_only=True)
class RowOptions(DataOptions):
    """The sources of the paper's datasets, and the protocol of their splits and prompts."""

    protocol: Protocol = option("paper", help="Rows and prompts of the paper, or of the authors' code release.")


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """Calibration of predictions."""

    calibrate: CalibrationChoice = option("none", help=CALIBRATE_HELP)
    label_prior: str | None = option(
        None,
        metavar="SHARE,SHARE,...",
        help="The true label frequencies, in the labels' order; by default equal.",
    )
    few_labels: Path | None = option(
        None, help="Estimate the label frequencies from these labelled rows: CSV, JSONL or parquet."
    )

    def prior(self, task: Task) -> tuple[float, ...] | None:
        """Return the given label frequencies, or estimate them from the labelled rows.

        Raises:
            InputError: ``E-LABEL-PRIOR`` if they are invalid, given twice, missing or without effect; or an error of
                the file's.
        """
        if self.label_prior is not None and self.few_labels is not None:
            raise InputError("E-LABEL-PRIOR", "--label-prior and --few-labels are both given.", "Remove one of them.")
        prior = self.label_prior if self.few_labels is None else prior_from(task, self.few_labels)
        return check_calibration(self.calibrate, prior, task.num_labels)


@dataclass(frozen=True, kw_only=True)
class AuditCalibrationOptions(CalibrationOptions):
    """Calibration of an audit, by default in addition to the raw metrics."""

    calibrate: CalibrationChoice = option("auto", help=CALIBRATE_HELP)
