"""Collective algorithms: pure functions from a group size and bytes to transfers."""

from rapid_des.network.collectives.in_switch import IN_SWITCH as IN_SWITCH
from rapid_des.network.collectives.in_switch import fits as fits
from rapid_des.network.collectives.on_fabric import HIERARCHICAL as HIERARCHICAL
from rapid_des.network.collectives.on_fabric import ON_FABRIC as ON_FABRIC
from rapid_des.network.collectives.on_fabric import PER_DIMENSION as PER_DIMENSION
from rapid_des.network.collectives.on_fabric import DimensionPhase as DimensionPhase
from rapid_des.network.collectives.on_fabric import Hierarchy as Hierarchy
from rapid_des.network.collectives.on_fabric import ShapedCollective as ShapedCollective
from rapid_des.network.collectives.on_fabric import build_schedule as build_schedule
from rapid_des.network.collectives.on_fabric import chunk_phases as chunk_phases
from rapid_des.network.collectives.on_fabric import collectives_of as collectives_of
from rapid_des.network.collectives.on_fabric import flatten as flatten
from rapid_des.network.collectives.on_fabric import hierarchy_of as hierarchy_of
from rapid_des.network.collectives.on_fabric import on_fabric as on_fabric
from rapid_des.network.collectives.proof import prove as prove
from rapid_des.network.collectives.registry import ALGORITHMS as ALGORITHMS
from rapid_des.network.collectives.registry import Algorithm as Algorithm
from rapid_des.network.collectives.registry import algorithm as algorithm
from rapid_des.network.collectives.registry import algorithms_for as algorithms_for
from rapid_des.network.collectives.schedule import Demand as Demand
from rapid_des.network.collectives.schedule import Draft as Draft
from rapid_des.network.collectives.schedule import Pieces as Pieces
from rapid_des.network.collectives.schedule import Schedule as Schedule
from rapid_des.network.collectives.schedule import demand as demand
