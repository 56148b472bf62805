"""Loops that run as Python, or as machine code that a process calls without importing numba.

    functions ──numba──► LLVM's text ──LLVM──► one object file ──linker──► a shared library in the wheel
    columns ──► words: the addresses of tables ──► machine code

Importing numba takes longer than most runs, and compiling takes half a minute. So all kernels are compiled
when a wheel is built. In a checkout the first run that is long enough compiles them, and a cache folder keeps
the result. File names contain a digest of the sources, so an edited source has its own machine code.

`kinds` states the kinds of arguments, `kernel` passes them to machine code, `columns` defines their types for
numba. `emit` makes the object file, and `library` finds, makes and loads it.
"""

from rapid_des.compiling.kernel import CompiledKernel as CompiledKernel
from rapid_des.compiling.kernel import Words as Words
from rapid_des.compiling.kinds import compilable as compilable
