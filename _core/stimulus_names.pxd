# Names of the driver's phases and stimuli.
from libc.stdint cimport uint64_t


cdef tuple wanted_names(uint64_t mask)
