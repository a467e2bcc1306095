"""Which rank of a pool takes a request next: in turn, or where a chooser says.

Decides round robin over all ranks of a pool. Never decides when a request needs a place: handoffs do.
"""

cimport cython


@cython.final
cdef class Places:
    """Ranks of the prefill workers, which come first, and of those that decode."""

    def __cinit__(self, int32_t num_prefill_workers, int32_t num_decode_workers, int32_t prefill_dp_size, int32_t decode_dp_size):
        self.num_workers[0], self.num_workers[1] = num_prefill_workers, num_decode_workers
        self.dp_size[0], self.dp_size[1] = prefill_dp_size, decode_dp_size

    cdef int take(self, bint decode, double now_ms, Seeker* seeker, int32_t* worker, int32_t* rank) except -1 nogil:
        """The place of a request, with the number of its worker in the fleet; the turn is used."""
        cdef int64_t at
        if self.chooser is not None:
            with gil:
                return self._ask(decode, now_ms, seeker, worker, rank)
        at = self.next_at[decode]
        worker[0] = <int32_t>(at // self.dp_size[decode]) + (self.num_workers[0] if decode else 0)
        rank[0] = <int32_t>(at % self.dp_size[decode])
        self.next_at[decode] = (at + 1) % (<int64_t>self.num_workers[decode] * self.dp_size[decode])
        return 0

    cdef int _ask(self, bint decode, double now_ms, Seeker* seeker, int32_t* worker, int32_t* rank) except -1:
        cdef int64_t i
        if decode:
            worker[0], rank[0] = self.chooser.choose_decode(now_ms, seeker.request, seeker.n_in)
        else:
            hash_ids = [seeker.hash_ids[i] for i in range(seeker.num_hash_ids)]
            worker[0], rank[0] = self.chooser.choose_prefill(now_ms, seeker.request, seeker.n_in, hash_ids)
        if not (0 <= worker[0] < self.num_workers[decode] and 0 <= rank[0] < self.dp_size[decode]):
            raise ValueError(f"the pool has no worker {worker[0]} with rank {rank[0]}")
        worker[0] += self.num_workers[0] if decode else 0
        return 0
