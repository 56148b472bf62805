"""ASTRA-sim as a front door: its input files and its rules, lowered to our program.

What is that simulator's own stands here; slots, groups, routes, expansions, templates' and rank programs'
builders are those of `program`.

    files, topology     its network, system, groups and memory files; its links and their times
    lowering            groups by its names, one program for all ranks that run the same, remote memory
    ranks               who runs what for how long: CPU, GPU and communication, in the order of node ids
    collectives         a collective to chunks and phases, phases to the queues of their dimension
    expansions          the same as member visits, with queues as servers and priorities
    algorithms          the templates of phases by the names in the system file: lockstep, direct, tree
    front_door          traces and files in, its figures out
"""

from rapid_des.importers.astra_sim.files import Dialect as Dialect
from rapid_des.importers.astra_sim.files import Files as Files
from rapid_des.importers.astra_sim.files import Setup as Setup
from rapid_des.importers.astra_sim.files import read_setup as read_setup
from rapid_des.importers.astra_sim.front_door import AstraResult as AstraResult
from rapid_des.importers.astra_sim.front_door import read_traces as read_traces
from rapid_des.importers.astra_sim.front_door import replay_astra as replay_astra
from rapid_des.importers.astra_sim.front_door import replay_traces as replay_traces
from rapid_des.importers.astra_sim.lowering import lower as lower
