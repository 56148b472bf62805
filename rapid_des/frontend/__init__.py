"""From a job to operators to a trace for every rank."""

from rapid_des.frontend.build import build as build
from rapid_des.frontend.build import check_memory as check_memory
from rapid_des.frontend.build import memory as memory
from rapid_des.frontend.job import Job as Job
from rapid_des.frontend.loading import load_job as load_job
from rapid_des.frontend.loading import load_model as load_model
from rapid_des.frontend.memory import JobMemory as JobMemory
from rapid_des.frontend.memory import StageMemory as StageMemory
from rapid_des.frontend.model import Model as Model
from rapid_des.frontend.model_spec import ModelSpec as ModelSpec
from rapid_des.frontend.spec import JobSpec as JobSpec
from rapid_des.frontend.trace import JobTrace as JobTrace
from rapid_des.frontend.trace import PricedOperator as PricedOperator
from rapid_des.frontend.trace import Segment as Segment
