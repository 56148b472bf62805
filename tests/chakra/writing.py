"""Writers for tests: trace files of today's and of older generations, made from plain values."""

from pathlib import Path

from rapid_des.chakra.files import varint
from rapid_des.chakra.wire import message_class

METADATA, LOAD, STORE, COMPUTE, SEND, RECV, COLLECTIVE = 1, 2, 3, 4, 5, 6, 7
KINDS = {int: "int64_val", bool: "bool_val", str: "string_val", float: "double_val", bytes: "bytes_val"}


def attribute(message, name, value, kind=None):
    """Add one attribute; its value kind follows the Python type unless it is named."""
    added = message.attr.add(name=name)
    if value is not None:
        setattr(added, kind or KINDS[type(value)], value)


def node(id=0, name="n", type=COMPUTE, needs=(), ctrl=(), us=0, **attributes):
    """Return one of today's nodes as bytes; an attribute may be a (value, kind) pair."""
    message = message_class("Node")(id=id, name=name, type=type, duration_micros=us)
    message.data_deps.extend(needs)
    message.ctrl_deps.extend(ctrl)
    for key, value in attributes.items():
        attribute(message, key, *(value if isinstance(value, tuple) else (value,)))
    return message.SerializeToString()


def metadata(version="0.0.4", **attributes):
    message = message_class("GlobalMetadata")(version=version)
    for key, value in attributes.items():
        attribute(message, key, value)
    return message.SerializeToString()


def delimited(*frames):
    return b"".join(varint(len(frame)) + frame for frame in frames)


def write(path: Path, *frames):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(delimited(*frames))
    return path


def one_rank(folder: Path, *nodes, head=None, name="job.0.et"):
    """Write a one-rank set and return its folder."""
    write(folder / name, metadata() if head is None else head, *nodes)
    return folder


def ranks(folder: Path, *programs, prefix="job"):
    """Write one file a rank and return the folder."""
    for rank, nodes in enumerate(programs):
        write(folder / f"{prefix}.{rank}.et", metadata(), *nodes)
    return folder


def all_reduce(id=0, size=1024, **more):
    return node(id, "ar", COLLECTIVE, comm_type=0, comm_size=size, is_cpu_op=False, **more)


def send(id, to, tag=0, size=64, **more):
    return node(
        id, "s", SEND, comm_dst=(to, "int32_val"), comm_tag=(tag, "int32_val"), comm_size=size, **more
    )


def recv(id, source, tag=0, size=64, **more):
    return node(
        id, "r", RECV, comm_src=(source, "int32_val"), comm_tag=(tag, "int32_val"), comm_size=size, **more
    )
