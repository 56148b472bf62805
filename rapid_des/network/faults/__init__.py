"""Faults: what is hit, how and when; one language for machine files and the command line."""

from rapid_des.network.faults.effects import GpuFactors as GpuFactors
from rapid_des.network.faults.effects import apply_static as apply_static
from rapid_des.network.faults.effects import drawn_names as drawn_names
from rapid_des.network.faults.effects import gpu_factors as gpu_factors
from rapid_des.network.faults.effects import hits as hits
from rapid_des.network.faults.effects import mixed as mixed
from rapid_des.network.faults.effects import on_links as on_links
from rapid_des.network.faults.effects import require_hits as require_hits
from rapid_des.network.faults.effects import touches_links as touches_links
from rapid_des.network.faults.specs import Fault as Fault
from rapid_des.network.faults.specs import check_fault as check_fault
from rapid_des.network.faults.specs import parse_fault as parse_fault
from rapid_des.network.faults.timing import GpuTimetable as GpuTimetable
from rapid_des.network.faults.timing import dead_at as dead_at
from rapid_des.network.faults.timing import gpu_timetables as gpu_timetables
from rapid_des.network.faults.timing import link_timetables as link_timetables
from rapid_des.network.faults.timing import placed_in_time as placed_in_time
