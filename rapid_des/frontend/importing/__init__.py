"""Models and jobs from other tools' files: Hugging Face, Megatron-LM, torchtitan, RAPID-LLM."""

from __future__ import annotations

from rapid_des.frontend.importing.hugging_face import Imported, import_hugging_face
from rapid_des.frontend.importing.imported import ImportedJob
from rapid_des.frontend.importing.keys import Ignored, by_reason
from rapid_des.frontend.importing.megatron import import_megatron
from rapid_des.frontend.importing.rapid_llm import ImportedFiles, import_rapid_llm
from rapid_des.frontend.importing.torchtitan import import_torchtitan

__all__ = [
    "Ignored",
    "Imported",
    "ImportedJob",
    "ImportedFiles",
    "by_reason",
    "import_hugging_face",
    "import_megatron",
    "import_rapid_llm",
    "import_torchtitan",
]
