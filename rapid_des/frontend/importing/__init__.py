"""Models from other tools' files: Hugging Face configs, without what they point to."""

from __future__ import annotations

from rapid_des.frontend.importing.hugging_face import Imported, import_hugging_face

__all__ = ["Imported", "import_hugging_face"]
