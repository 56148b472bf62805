"""YAML and JSON files to frozen, strict specs; errors name file, key path, value and what was allowed."""

from rapid_des.config.documents import Document, load_document
from rapid_des.config.overrides import apply_overrides
from rapid_des.config.presets import preset_file, preset_names, resolve
from rapid_des.config.specs import Spec, decode, json_schema, to_yaml

__all__ = [
    "Document",
    "Spec",
    "apply_overrides",
    "decode",
    "json_schema",
    "load_document",
    "preset_file",
    "preset_names",
    "resolve",
    "to_yaml",
]
