"""The public names of the package and where they are defined, each listed once."""

from rapid_des.chakra.checking import check as check
from rapid_des.chakra.checking import check_report as check_report
from rapid_des.chakra.checking import check_set as check_set
from rapid_des.chakra.checking import repair_lines as repair_lines
from rapid_des.chakra.checking import require_sound as require_sound
from rapid_des.chakra.convert import NodeFile as NodeFile
from rapid_des.chakra.convert import convert_set as convert_set
from rapid_des.chakra.convert import converted_paths as converted_paths
from rapid_des.chakra.convert import read_nodes as read_nodes
from rapid_des.chakra.convert import write_nodes as write_nodes
from rapid_des.chakra.dialects import ReadOptions as ReadOptions
from rapid_des.chakra.reader import ReadReport as ReadReport
from rapid_des.chakra.reader import read_report as read_report
from rapid_des.chakra.reader import read_set as read_set
from rapid_des.chakra.statistics import RankStatistics as RankStatistics
from rapid_des.chakra.statistics import rank_statistics as rank_statistics
from rapid_des.chakra.statistics import statistics_json as statistics_json
from rapid_des.chakra.trace import UNSTATED as UNSTATED
from rapid_des.chakra.trace import CollectiveType as CollectiveType
from rapid_des.chakra.trace import Finding as Finding
from rapid_des.chakra.trace import NodeKind as NodeKind
from rapid_des.chakra.trace import NodeTable as NodeTable
from rapid_des.chakra.trace import RankTrace as RankTrace
from rapid_des.chakra.trace import TraceSet as TraceSet
from rapid_des.chakra.writer import set_paths as set_paths
from rapid_des.chakra.writer import write_set as write_set
