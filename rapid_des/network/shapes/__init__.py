"""Shapes: functions that return the block of links of one dimension; `built_by` of its spec names them."""
