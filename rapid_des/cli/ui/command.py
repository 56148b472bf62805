"""`rapid-des ui`: the page's address, and the process that answers it."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from pathlib import Path

import click

from rapid_des.cli.options import echo, json_option
from rapid_des.errors import InputError
from rapid_des.report.writing import check_folder, require_extra

_HOST = "127.0.0.1"


@click.command("ui")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8617,
    show_default=True,
    help="Its port; 0: any free one.",
)
@click.option("--no-browser", is_flag=True, help="Print the address alone; open no browser.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("rapid-des-ui"),
    show_default=True,
    help="Keeps all runs; job and machine files in it can be chosen by name.",
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Commands that run at once."
)
@json_option
def ui(port: int, folder: Path, workers: int, *, no_browser: bool, as_json: bool) -> None:
    """Ask and answer in a browser on this machine: forms, sliders, plans, servers, broken links, history.

    It listens on the loopback address alone, and answers only those who know the token in the address that
    it prints. ^C ends it; what has ended stays in its folder.

    rapid-des ui --port 8000
    """
    for package in ("starlette", "uvicorn"):
        require_extra(package, "ui", "rapid-des ui")
    check_folder(folder)
    from rapid_des.cli.ui.server import serve_page

    with _listening(port) as listener:
        bound = listener.getsockname()[1]
        token = secrets.token_urlsafe(24)
        address = f"http://{_HOST}:{bound}/{token}/"
        echo(as_json, {"address": address}, [address])
        if not no_browser:
            webbrowser.open(address)
        serve_page(listener, token, folder.resolve(), workers)


def _listening(port: int) -> socket.socket:
    """Return a socket on which nobody but this machine can reach the page."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise InputError(f"--port {port}: {error.strerror}; --port 0 takes a free one") from None
    return listener
