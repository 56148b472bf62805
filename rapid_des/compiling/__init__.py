"""Loops that run as they stand, and as machine code that a process calls without importing numba.

    functions ──numba──► LLVM's text ──LLVM──► one object file ──linker──► a shared library in the wheel
    columns ──► words: the addresses of tables ──► machine code

Importing numba takes longer than most runs, and compiling takes half a minute. So that is done when a wheel
is built, for all kernels at once. In a checkout the first run that pays for it does it, and it is kept in a
cache folder. Names of files say what they were made of: an edited source has other machine code.

`kinds` says what kernels take, `kernel` gives it to machine code, `columns` has numba compile it. `emit`
makes the object file, and `library` finds, makes and loads it.
"""

from rapid_des.compiling.kernel import Kernel as Kernel
from rapid_des.compiling.kernel import Words as Words
from rapid_des.compiling.kinds import compilable as compilable
