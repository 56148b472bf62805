"""An object file of kernels, made by numba and LLVM.

numba would optimise and translate each function alone, and again with each of its callers, which takes twice
as long. Here numba only writes LLVM's text; LLVM then optimises all of it once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from rapid_des.compiling.kinds import COMPILABLE, KERNELS, kinds_of, name_of

_FAMILIES = {"x86_64": "x86-64", "AMD64": "x86-64"}
"""Maps a machine to LLVM's name of its oldest processor; other machines have `generic`."""
_OPTIONS = {
    "_nrt": False,  # without counting references: there are none
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "no_rewrites": True,  # of arrays, of which there are none
    "looplift": False,
}
"""The options of all functions; numba would compile a function again for a caller with others."""


def object_code(modules: Sequence[str], machine: str) -> tuple[list[str], bytes]:
    """Return the names of all kernels of some modules, and their object code for any machine of a kind.

    numba must not have been imported in this process: an environment variable switches off its optimiser.
    """
    os.environ["NUMBA_OPT"] = "0"
    import llvmlite.binding as llvm
    from numba.extending import register_jitable

    for name in modules:
        import_module(name)
    kernels = {name_of(function): function for function in KERNELS if function.__module__ in modules}
    while COMPILABLE:
        register_jitable(**_OPTIONS)(COMPILABLE.popitem()[0])
    whole = _linked([_written(name, function) for name, function in sorted(kernels.items())], set(kernels))
    target = llvm.Target.from_triple(llvm.get_process_triple())
    cpu = _FAMILIES.get(machine, "generic")
    translator = target.create_target_machine(cpu=cpu, opt=3, reloc="pic", codemodel="default")
    passes = llvm.create_pass_builder(translator, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(whole, passes)
    return sorted(kernels), bytes(translator.emit_object(whole))


def _written(name: str, function: Callable[..., None]) -> Any:
    """Return a function under its name, and all functions that it calls, as a module of LLVM."""
    import llvmlite.binding as llvm
    from numba import njit, types

    from rapid_des.compiling.columns import type_of

    def entry(given: Any) -> None:
        function(*given)

    options: Any = _OPTIONS
    takes: Any = types.Tuple(
        list(map(type_of, kinds_of(function)))
    )  # its parts are arguments of machine code
    compiled = njit(types.void(takes), **options)(entry)
    (signature,) = compiled.signatures
    module = llvm.parse_assembly(compiled.inspect_llvm(signature))
    module.get_function(compiled.overloads[signature].fndesc.llvm_func_name).name = name
    return module


def _linked(modules: list[Any], names: set[str]) -> Any:
    """Return one module, in which LLVM may change or remove all functions that are not named."""
    whole, *others = modules
    for other in others:
        whole.link_in(other)
    for function in whole.functions:
        if not function.is_declaration:
            function.linkage = "external" if function.name in names else "internal"
    return whole
