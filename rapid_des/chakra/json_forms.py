"""Traces as JSON text: jsonizer output and `workload_graph` are read, other JSON is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from rapid_des.chakra.files import CHUNK, open_bytes, read_some
from rapid_des.chakra.wire import message_class
from rapid_des.errors import TraceError

_REFUSED = {
    "traceEvents": "is a Kineto (Chrome) timeline, no Chakra trace; `rapid-des profile show` and "
    "`rapid-des replay` read it",
    "nodes": "is a PyTorch host execution trace or another JSON graph, not a Chakra trace; "
    "`rapid-des replay` reads the Kineto profile of the same run, with the host trace before it or without",
}
LARGEST_JSON = 1 << 28
_UNFIT = (json_format.ParseError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)
"""The exceptions that protobuf raises for JSON of another form, type or range."""
_SPACE = re.compile(r"\s*")
_ALLOWED = "allowed: jsonizer output, or an object with 'workload_graph'"


def read_json(path: Path) -> tuple[Any, Iterator[bytes]]:
    """Return (the `GlobalMetadata`, the nodes as today's frames) of a JSON trace."""
    packed = _whole(path)
    try:
        text = packed.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: byte {error.start} is not UTF-8 text") from error
    documents = _documents(text, path)
    first = next(documents, None)
    if not isinstance(first, dict):
        raise TraceError(f"{path}: is JSON of another kind; {_ALLOWED}")
    if "workload_graph" in first:
        return message_class("GlobalMetadata")(), _workload_graph(first["workload_graph"], path)
    for key, problem in _REFUSED.items():
        if key in first:
            raise TraceError(f"{path}: {problem}")
    if first.keys() - {"version", "attr"}:
        raise TraceError(f"{path}: is JSON of another kind (it has {', '.join(list(first)[:4])}); {_ALLOWED}")
    metadata = message_class("GlobalMetadata")()
    _parse(first, metadata, f"{path}: metadata")
    return metadata, _jsonizer_nodes(documents, path)


def _whole(path: Path) -> bytes:
    parts, size = list[bytes](), 0
    with open_bytes(path) as stream:
        while part := read_some(stream, CHUNK, path=path):
            parts.append(part)
            size += len(part)
            if size > LARGEST_JSON:
                problem = f"JSON of more than {LARGEST_JSON >> 20} MiB is not read; convert it to .et"
                raise TraceError(f"{path}: {problem}")
    return b"".join(parts)


def _documents(text: str, path: Path) -> Iterator[Any]:
    """Yield the JSON documents that are written one after the other, with or without separators."""
    decoder = json.JSONDecoder()
    position = _first_after_space(text, 0)
    while position < len(text):
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            where = getattr(error, "pos", position)
            raise TraceError(f"{path}: truncated or corrupt JSON at character {where}: {error}") from error
        yield document
        position = _first_after_space(text, position)


def _first_after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _parse(document: Any, message: Any, where: str) -> None:
    try:
        json_format.ParseDict(document, message)
    except _UNFIT as error:
        raise TraceError(f"{where}: {str(error).splitlines()[0]}") from error


def _jsonizer_nodes(documents: Iterator[Any], path: Path) -> Iterator[bytes]:
    for index, document in enumerate(documents):
        node = message_class("Node")()
        _parse(document, node, f"{path}: node {index}")
        yield bytes(node.SerializeToString())


_NODE_KEYS = {
    "Id": "id",
    "Name": "name",
    "NodeType": "type",
    "data_deps": "data_deps",
    "ctrlDeps": "ctrl_deps",
    "runtime": "duration_micros",
}
_ATTRIBUTE_KINDS = {
    "is_cpu_op": "bool_val",
    "tensor_size": "uint64_val",
    "num_ops": "int64_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    "comm_priority": "int32_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "pg_name": "string_val",
}


def _workload_graph(entries: Any, path: Path) -> Iterator[bytes]:
    if not isinstance(entries, list):
        raise TraceError(f"{path}: workload_graph: is no list")
    for index, entry in enumerate(entries):
        where = f"{path}: workload_graph[{index}]"
        if not isinstance(entry, dict) or not {"Id", "Name", "NodeType"} <= entry.keys():
            raise TraceError(f"{where}: is no node; a node has Id, Name and NodeType")
        document: dict[str, Any] = {name: entry[key] for key, name in _NODE_KEYS.items() if key in entry}
        document["attr"] = [
            {"name": key, kind: entry[key]} for key, kind in _ATTRIBUTE_KINDS.items() if key in entry
        ]
        node = message_class("Node")()
        _parse(document, node, where)
        yield bytes(node.SerializeToString())


def node_json(message: Any) -> str:
    """Return one message as jsonizer writes it: canonical protobuf JSON, defaults left out."""
    return str(json_format.MessageToJson(message))
