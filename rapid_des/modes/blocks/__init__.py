"""Block modes: distinct blocks on the inner dimensions once, then the pipeline and data-parallel graph."""

from rapid_des.modes.blocks.bounds import may_pay_whole as may_pay_whole
from rapid_des.modes.blocks.bounds import pays_whole as pays_whole
from rapid_des.modes.blocks.bounds import require_own_links as require_own_links
from rapid_des.modes.blocks.bounds import whole_note as whole_note
from rapid_des.modes.blocks.inner import BLOCK_MODES as BLOCK_MODES
from rapid_des.modes.blocks.inner import BlockMode as BlockMode
from rapid_des.modes.blocks.inner import BlockRun as BlockRun
from rapid_des.modes.blocks.outer import bounded as bounded
from rapid_des.modes.blocks.outer import run_blocks as run_blocks
