"""A policy in Cython, against the installed headers: who came last goes first.

    cythonize -i examples/last_come.pyx
    PYTHONPATH=examples mocker-replay run TRACE.jsonl --policy last_come:LastComeFirstServed
"""
from mocker_replay._core.policy cimport RankView, SchedulingPolicy
from mocker_replay._core.request_table cimport Request


cdef class LastComeFirstServed(SchedulingPolicy):
    def __init__(self):
        self.orders = True

    cdef double order_key(self, const RankView* rank, const Request* request) except? -1.0 nogil:
        return -request.terms.arrival_ms

    cdef const char* reason(self, int decision) except NULL nogil:
        return b"last_come"
