"""``flip-flop serve``."""

import math
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import click

from flip_flop.cli.options import option, options
from flip_flop.console import echo
from flip_flop.errors import InputError, require_package

IDLE_SECONDS = 75  # after which a connection is closed: longer than those of usual clients


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The address of the server, and the limits of requests."""

    host: str = option("127.0.0.1", help="The address; 0.0.0.0 listens on all networks of this machine.")
    port: int = option(8000, type=click.IntRange(0, 65535), help="The port; 0 is a free one.")
    max_waiting: int = option(1024, min=1, help="Questions in the queue; above it, the status is 429.")
    timeout: float = option(60.0, type=click.FloatRange(min=0.1), help="Seconds to receive and answer a request.")


@click.command("serve")
@click.argument("folder", type=click.Path(path_type=Path))
@options(ServeOptions)
def serve_command(run: ServeOptions, folder: Path) -> None:
    """Answer questions over HTTP with the classifier of FOLDER: POST /v1/systemone and /v1/decisions.

    FOLDER is an audit, a training run or an export. A question with the name of its task is answered by its templates,
    any other in zero-shot form. Clients send the key in FLIP_FLOP_API_KEY, if it is set, as Bearer token.
    """
    for package in ("fastapi", "uvicorn"):
        require_package(package, "serve", "E-SERVE", "flip-flop serve")
    import uvicorn

    family = socket.AF_INET6 if ":" in run.host else socket.AF_INET
    try:
        bound = socket.create_server((run.host, run.port), family=family)  # before the minutes of a model
    except OSError as error:
        where = f"Cannot listen on {run.host}, port {run.port}: {error.strerror}."
        raise InputError("E-SERVE", where, "Give another --host or --port.") from None
    click.get_current_context().with_resource(bound)
    from flip_flop.classifier.read import read_classifier

    classifier = read_classifier(folder)
    key = os.environ.get("FLIP_FLOP_API_KEY", "")
    echo(f"loading {classifier.model.name}", err=True)
    from flip_flop.classifier.load import LoadedClassifier, load_scorer
    from flip_flop.serving.app import create_app
    from flip_flop.serving.engine import Engine

    engine = Engine(LoadedClassifier(classifier, lambda: load_scorer(classifier)))
    host = f"[{run.host}]" if ":" in run.host else run.host
    echo(f"{engine.name}: http://{host}:{bound.getsockname()[1]} (Ctrl-C stops)")
    config = uvicorn.Config(
        create_app(engine, key=key, max_waiting=run.max_waiting, timeout=run.timeout),
        log_config=None,
        access_log=False,
        limit_concurrency=1024,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=math.ceil(run.timeout) + 1,
    )
    uvicorn.Server(config).run(sockets=[bound])
