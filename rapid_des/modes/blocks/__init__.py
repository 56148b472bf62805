"""Block modes: distinct blocks on the inner dimensions once, then the pipeline and data-parallel graph."""

from rapid_des.modes.blocks.block_run import BLOCK_MODES, BlockMode, BlockRun
from rapid_des.modes.blocks.bounds import pays_whole, require_own_links, whole_note
from rapid_des.modes.blocks.outer import run_blocks

__all__ = [
    "BLOCK_MODES",
    "BlockMode",
    "BlockRun",
    "pays_whole",
    "require_own_links",
    "run_blocks",
    "whole_note",
]
