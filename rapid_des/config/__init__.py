"""YAML and JSON files to frozen, strict specs; errors name file, key path, value and what was allowed."""

from rapid_des.config.documents import (
    Document,
    Settings,
    apply_overrides,
    as_pairs,
    count_rows,
    load_document,
    read_text,
    settings_named,
)
from rapid_des.config.specs import (
    Spec,
    decode,
    json_schema,
    open_document,
    preset_file,
    preset_names,
    resolve,
    to_tree,
    to_yaml,
)

__all__ = [
    "Document",
    "Settings",
    "Spec",
    "apply_overrides",
    "as_pairs",
    "count_rows",
    "decode",
    "json_schema",
    "load_document",
    "open_document",
    "preset_file",
    "preset_names",
    "read_text",
    "resolve",
    "settings_named",
    "to_tree",
    "to_yaml",
]
