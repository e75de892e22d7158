"""The hub's availability, and the kinds of model names."""

import contextlib
import functools
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from flip_flop.console import num_processes
from flip_flop.errors import InputError, require_known, require_package

DEMO = "demo"  # the embedded model
SERVED = "openai:"  # begins the name of a model that is served
DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "hpu", "npu", "mlu", "musa", "mtia", "xla", "meta")
# The libraries retry for half a minute.
SECONDS_TO_ANSWER = 3.0
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
WAY_OUT = "download it on a machine with a network (`hf download`), or set HTTPS_PROXY or HF_ENDPOINT"


def is_offline() -> bool:
    """Return whether the user forbids access to the hub."""
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in _OFFLINE)


def why_unreachable() -> str:
    """Describe why the hub, or its mirror ``HF_ENDPOINT``, is not available. Empty if it answers; it is tried once."""
    if is_offline():
        return "HF_HUB_OFFLINE is set"
    address = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    if _answers(address):
        return ""
    return f"{urlsplit(address).hostname} does not answer"


def commit_on_hub(repository: str, revision: str | None, kind: str) -> str | None:
    """Return the current commit of a revision of a ``"model"`` or ``"dataset"``; None if the hub does not give it."""
    from huggingface_hub import HfApi

    with contextlib.suppress(Exception):  # loading reports the error, or reads the cache
        if not is_offline():
            return HfApi().repo_info(repository, repo_type=kind, revision=revision, timeout=20).sha
    return None


class GGUFName(NamedTuple):
    """The name of a GGUF file, and its folder or its repository on the hub."""

    place: str
    file: str


def gguf_name(name: str) -> GGUFName | None:
    """Return the GGUF file of a model's name, or ``None`` for a model in another format.

    The name is a file, a folder with one GGUF file and no safetensors, or ``OWNER/NAME/FILE`` on the hub.

    Raises:
        InputError: ``E-MODEL-FILE``: the folder has several GGUF files.
    """
    folder = Path(name)
    if name == DEMO or not folder.is_dir():
        if name.endswith(".gguf"):
            return GGUFName(str(folder.parent), folder.name)
        return None
    files = [] if any(folder.glob("*.safetensors")) else sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise InputError("E-MODEL-FILE", f"{name} has {len(files)} GGUF files.", f"Name one, such as {files[0]}.")
    return GGUFName(name, files[0].name) if files else None


def is_local_name(name: str) -> bool:
    """Return whether a name is a path. The hub's are OWNER/NAME, NAME and OWNER/NAME/FILE.gguf, unless OWNER exists."""
    owner, *rest = name.split("/")
    fits_hub = len(rest) == 2 if name.endswith(".gguf") else len(rest) < 2
    starts_path = name.startswith((".", "/", "~")) or bool(rest and Path(owner).is_dir())
    return starts_path or not fits_hub or Path(name).is_dir()


def absolute_place(name: str) -> str:
    """Return the absolute path of a local model, and any other name unchanged."""
    if is_local_name(name) and Path(name).exists():
        return str(Path(name).absolute())
    return name


def check_model_name(name: str, revision: str | None = None, *, dtype: str = "auto", device: str = "auto") -> None:
    """Reject a model before the seconds of any import, if it does not exist or cannot be downloaded.

    Raises:
        InputError: ``E-MODEL-FILE``; ``E-MODEL-DEVICE`` for an unknown data type or device.
    """
    require_known([dtype], ("auto", *DTYPES), "E-MODEL-DEVICE", "Unknown dtype")
    if device.partition(":")[0] not in DEVICES:
        raise InputError("E-MODEL-DEVICE", f"Unknown device {device!r}.", "Use cpu, or cuda for a GPU.")
    if is_endpoint(name):
        raise InputError(
            "E-ENDPOINT",
            f"{name} is a served model: its weights cannot be loaded or trained.",
            "Give it to audit or predict, or give a model's folder or name.",
        )
    gguf = gguf_name(name)
    if is_local_name(name):
        if not (Path(*gguf).is_file() if gguf else Path(name).is_dir()):
            hint = "Give a model's folder, a GGUF file or a name on the hub."
            if name.startswith(("http://", "https://")):
                hint = "For a served model, write openai:URL#NAME, with its name on the server."
            raise InputError("E-MODEL-FILE", f"{name} does not exist.", hint)
        for file in Path(name).iterdir() if Path(name).is_dir() else ():
            if file.is_fifo() or file.is_char_device() or file.is_block_device():  # whose reading may never end
                raise InputError("E-MODEL-FILE", f"{file} is a pipe or a device.", "Give a model's folder.")
    elif name != DEMO and not is_cached(name, revision) and (reason := why_unreachable()):
        raise InputError("E-MODEL-FILE", f"cannot download {name}: {reason}.", f"Give a folder, or {WAY_OUT}.")
    if gguf:
        require_package("gguf", "gguf", "E-MODEL-FILE", name)


def check_shard(
    name: str, quantization: object = None, device_map: object = None, *, has_launcher: bool = False
) -> None:
    """Reject ``--shard`` without a launcher, and for weights that transformers does not shard (``E-DISTRIBUTED``)."""
    other = None
    if gguf_name(name):
        other = "GGUF"
    elif quantization:
        other = "--load-in"
    elif device_map:
        other = "--device-map"
    if other is not None:
        raise InputError("E-DISTRIBUTED", f"--shard does not work with {other}.", "Leave one of them out.")
    if not has_launcher and num_processes() == 1:
        raise InputError(
            "E-DISTRIBUTED",
            "shard divides the weights between processes, but there is one.",
            "Start several: torchrun --nproc-per-node N -m flip_flop ..., or study run --processes-per-unit N.",
        )


class Endpoint(NamedTuple):
    """The address of a server, such as ``http://127.0.0.1:8000/v1``, and its name of the model."""

    url: str
    model: str


def is_endpoint(name: str) -> bool:
    """Return whether a model is served: ``openai:URL#NAME``."""
    return name.startswith(SERVED)


def endpoint_of(name: str) -> Endpoint:
    """Parse ``openai:URL#NAME``.

    Raises:
        InputError: ``E-ENDPOINT`` if it is invalid or has a key, or if the client library is not installed.
    """
    url, _, model = name.removeprefix(SERVED).partition("#")
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or bracket
        is_address = False
    if not is_address or not model:
        raise InputError(
            "E-ENDPOINT",
            f"{name!r} is not an endpoint and model.",
            f"Write {SERVED}http://HOST:PORT/v1#NAME, with the server's name of the model.",
        )
    if parts.username or parts.password or parts.query:
        raise InputError(
            "E-ENDPOINT",
            "A key does not belong in an endpoint's address.",
            "Set the variable OPENAI_API_KEY instead. The key is never written.",
        )
    require_package("openai", "openai", "E-ENDPOINT", "A served model")
    return Endpoint(url.rstrip("/"), model)


def is_cached(name: str, revision: str | None = None) -> bool:
    """Return whether the hub's cache has a model's configuration or its GGUF file."""
    from huggingface_hub import try_to_load_from_cache

    repository, file = gguf_name(name) or (name, "config.json")
    try:
        return isinstance(try_to_load_from_cache(repository, file, revision=revision), str)
    except ValueError:  # not a name of the hub
        return False


@functools.cache
def _answers(address: str) -> bool:
    from huggingface_hub.utils import get_session

    try:  # with the proxy and the certificates of the library
        return bool(get_session().head(address, timeout=SECONDS_TO_ANSWER).status_code < 500)
    except Exception:  # its kind depends on the version of the library
        return False
