"""The `config.json` of a model on the Hugging Face hub, by its id; `huggingface_hub` caches it."""

from __future__ import annotations

import re
from pathlib import Path

from rapid_des.errors import InputError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}\Z")
"""The form of an id: an organisation and a name, as in `Qwen/Qwen3-8B`."""


def hub_config(identifier: str) -> Path:
    """Return the path of a model's config.json in the cache; it is downloaded if it is not there yet."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        problem = (
            "is neither a file nor a preset; ids of the Hugging Face hub need `pip install 'rapid-des[hub]'`"
        )
        raise InputError(f"{identifier} {problem}") from None
    try:
        return Path(hf_hub_download(identifier, "config.json"))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        problem = "is neither a file nor a preset, and the Hugging Face hub does not hand out its config.json"
        raise InputError(f"{identifier} {problem}: {reason:.200}") from None
