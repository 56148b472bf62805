"""A GPU (or TPU) and what its operators cost: device files, conditions, operators and their prices."""

from rapid_des.device.device import Device as Device
from rapid_des.device.device import load_device as load_device
from rapid_des.device.device import load_device_spec as load_device_spec
from rapid_des.device.operators import Attention as Attention
from rapid_des.device.operators import Estimate as Estimate
from rapid_des.device.operators import Gemm as Gemm
from rapid_des.device.operators import GroupedGemm as GroupedGemm
from rapid_des.device.operators import Operator as Operator
from rapid_des.device.operators import OperatorModel as OperatorModel
from rapid_des.device.operators import Vector as Vector
from rapid_des.device.spec import Conditions as Conditions
from rapid_des.device.spec import DeviceSpec as DeviceSpec
