"""Message classes of every wire generation, from committed descriptors in a descriptor pool of our own.

The pool is private, so that these classes live beside any other copy of the Chakra schema in the process, and
the descriptors are plain bytes, so that no generated code ties us to one protobuf runtime. To change a
schema, edit the `.proto` files and run `python -m rapid_des.chakra.messages` where grpcio-tools is installed.
"""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

TODAY = "rapid_des.chakra"
SCHEMAS = ("chakra", "v0_0_1", "v0_0_2", "v0_0_3a", "v0_0_3b")
UNREADABLE = (DecodeError, ValueError, OverflowError)
"""What the protobuf runtimes raise for bytes or values that do not fit a message."""
_DESCRIPTORS = "descriptors.bin"


@functools.cache
def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    packed = resources.files("rapid_des.chakra.schema").joinpath(_DESCRIPTORS).read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(packed).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


@functools.cache
def message_class(name: str, package: str = TODAY) -> Any:
    r"""Return the message class `package.name`.

    >>> message_class("Node")(id=3, name="gemm").SerializeToString()
    b'\x08\x03\x12\x04gemm'
    """
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{package}.{name}"))


def compile_descriptors(folder: Path) -> bytes:
    """Return the serialized FileDescriptorSet of the schemas in `folder`; needs grpcio-tools."""
    import tempfile

    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / _DESCRIPTORS
        files = [f"{name}.proto" for name in SCHEMAS]
        status = protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={target}", *files])
        if status:
            raise RuntimeError(f"protoc failed with status {status}")
        return target.read_bytes()


def _main() -> None:
    folder = Path(__file__).with_name("schema")
    (folder / _DESCRIPTORS).write_bytes(compile_descriptors(folder))


if __name__ == "__main__":
    _main()
