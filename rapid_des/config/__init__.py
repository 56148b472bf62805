"""YAML and JSON files to frozen, strict specs; errors name file, key path, value and what was allowed."""

from rapid_des.config.documents import Document as Document
from rapid_des.config.documents import Settings as Settings
from rapid_des.config.documents import apply_overrides as apply_overrides
from rapid_des.config.documents import as_pairs as as_pairs
from rapid_des.config.documents import count_rows as count_rows
from rapid_des.config.documents import load_document as load_document
from rapid_des.config.documents import read_text as read_text
from rapid_des.config.documents import settings_named as settings_named
from rapid_des.config.specs import Spec as Spec
from rapid_des.config.specs import decode as decode
from rapid_des.config.specs import json_schema as json_schema
from rapid_des.config.specs import open_document as open_document
from rapid_des.config.specs import preset_file as preset_file
from rapid_des.config.specs import preset_names as preset_names
from rapid_des.config.specs import resolve as resolve
from rapid_des.config.specs import to_tree as to_tree
from rapid_des.config.specs import to_yaml as to_yaml
