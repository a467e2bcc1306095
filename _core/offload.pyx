"""The host tier: blocks of finished prompts kept in host memory, and the copies that bring them there and back.

An entry is a block that is in the tier, or that a store will bring. Resident entries that no load reads stand in one
LRU list, by cohorts: what one copy made available counts as used at the same time, and inside a cohort the block
with the lowest number goes first. Copies of one direction follow each other on a lane, whose end is never moved back.

Decides: what is kept, who is evicted, when a copy ends. Never decides what is stored or loaded, and never what happens
when a copy ends: `finish_next` hands the due ones over, one by one. Source: hand-off and offload specification, section 9.
"""
from libc.math cimport INFINITY, NAN
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc

from .types cimport NONE


cdef struct Numbered:
    uint64_t number
    int64_t entry


cdef int _lowest_first(const void* a, const void* b) noexcept nogil:
    cdef const Numbered* x = <const Numbered*>a
    cdef const Numbered* y = <const Numbered*>b
    if x.number != y.number:
        return -1 if x.number < y.number else 1
    return (x.entry > y.entry) - (x.entry < y.entry)


cdef Transfer* transfer_at(TransferRing* ring, int64_t i) noexcept nogil:
    """The i-th oldest."""
    return &ring.items[(ring.head + i) & ring.mask]


cdef Transfer* push_transfer(TransferRing* ring) except NULL nogil:
    """Room for one more; its fields are the caller's to fill."""
    cdef int64_t i
    cdef int64_t capacity = 16 if ring.items is NULL else ring.mask + 1
    cdef Transfer* grown
    if ring.items is NULL or ring.count == capacity:
        grown = <Transfer*>malloc(capacity * 2 * sizeof(Transfer))
        if grown is NULL:
            with gil:
                raise MemoryError(f"{capacity * 2} copies under way")
        for i in range(ring.count):
            grown[i] = transfer_at(ring, i)[0]
        free(ring.items)
        ring.items, ring.head, ring.mask = grown, 0, capacity * 2 - 1
    ring.count += 1
    return transfer_at(ring, ring.count - 1)


cdef void take_transfer(TransferRing* ring, int64_t i, Transfer* out) noexcept nogil:
    """Take the i-th oldest out; what it owns is the caller's now."""
    cdef int64_t j
    out[0] = transfer_at(ring, i)[0]
    if i == 0:
        ring.head = (ring.head + 1) & ring.mask
    else:
        for j in range(i, ring.count - 1):
            transfer_at(ring, j)[0] = transfer_at(ring, j + 1)[0]
    ring.count -= 1


cdef void free_ring(TransferRing* ring) noexcept nogil:
    cdef int64_t i
    for i in range(ring.count):
        free(transfer_at(ring, i).entries)
        free(transfer_at(ring, i).sources)
    free(ring.items)


cdef class HostTier:
    """Host memory of one rank.

    Args:
        num_blocks: blocks it holds. block_bytes: of one of them.
        d2h_gbps, h2d_gbps: bandwidth to the host and back [10^9 bytes/s]; 0 = instantaneous.
        latency_ms: before the first byte of a copy, in both directions.
        block_size, trace_block_size: geometry of the identities, see prefix_index.
    """

    def __cinit__(self, int64_t num_blocks, double block_bytes, double d2h_gbps, double h2d_gbps, double latency_ms,
                  int64_t block_size, int64_t trace_block_size, *shared):    # the latter are SharedTier's
        if num_blocks < 1:
            raise ValueError("num_host_blocks must be positive")
        self.num_blocks, self.block_bytes = num_blocks, block_bytes
        self.d2h_gbps, self.h2d_gbps, self.latency_ms = d2h_gbps, h2d_gbps, latency_ms
        self.keys = PrefixIndex(block_size, trace_block_size)
        self.keys.track_hashes()
        self.free_entry = self.oldest = self.newest = NONE

    def __dealloc__(self):
        free_ring(&self.stores)
        free_ring(&self.loads)
        free(self.entries)
        free(self.evicted)
        free(self.cohort)

    # -- what is there ----------------------------------------------------------------------------

    cdef int32_t entry_of(self, int32_t identity) noexcept nogil:
        """Entry of a block, NONE when the tier does not have it."""
        return self.keys.heads[identity]

    cdef bint is_free_to_load(self, int32_t identity) noexcept nogil:
        """Whether a block that has an entry is there, and nobody is loading it."""
        cdef HostEntry* entry = &self.entries[self.keys.heads[identity]]
        return entry.store == NONE and entry.pins == 0

    cdef int64_t load_of(self, int32_t identity) noexcept nogil:
        """Ordinal of the oldest load under way that reads a block; NONE when none does."""
        cdef int64_t i, j
        cdef Transfer* load
        for i in range(self.loads.count):
            load = transfer_at(&self.loads, i)
            for j in range(load.num_entries):
                if load.entries[j] == self.keys.heads[identity]:
                    return load.ordinal
        return NONE

    cdef bint is_pending(self, int32_t identity) noexcept nogil:
        """Whether a block that has an entry is still to be brought."""
        return self.entries[self.keys.heads[identity]].store != NONE

    cdef bint lacks_any(self, const int32_t* identities, int64_t n) noexcept nogil:
        """Whether one of these blocks has no entry."""
        cdef int64_t i
        for i in range(n):
            if self.keys.heads[identities[i]] == NONE:
                return True
        return False

    cdef bint is_stored_by(self, int32_t identity, int64_t ordinal) noexcept nogil:
        """Whether that store brings a block that has an entry."""
        return self.entries[self.keys.heads[identity]].store == ordinal

    cdef int64_t num_stored(self) noexcept nogil:
        """Blocks of the newest store, which must be in flight."""
        return transfer_at(&self.stores, self.stores.count - 1).num_entries

    cdef bint copies(self) noexcept nogil:
        """Whether anything is being copied, or is prepared to be."""
        return self.stores.count > 0 or self.loads.count > 0

    cdef bint store_in_flight(self, int64_t ordinal) noexcept nogil:
        """Whether a store has not ended; NONE never is."""
        return self.stores.count > 0 and ordinal >= transfer_at(&self.stores, 0).ordinal

    cdef double store_end_ms(self, int64_t ordinal) noexcept nogil:
        """End of a store in flight; NaN while it is only prepared."""
        return transfer_at(&self.stores, ordinal - transfer_at(&self.stores, 0).ordinal).end_ms

    # -- stores -----------------------------------------------------------------------------------

    cdef int64_t prepare_store(self, const int32_t* identities, int64_t n, int32_t request) except? -1 nogil:
        """Enter what is missing of a cohort of distinct blocks; victims are listed in `evicted`.

        Returns:
            ordinal of the store, or STORE_PRESENT, or STORE_RETRY; the latter two change nothing.
        """
        cdef int64_t i, short
        cdef int64_t missing = 0
        cdef int32_t entry, next_one
        cdef Transfer* transfer
        cdef int32_t* entries
        self.stamp += 1
        for i in range(n):
            entry = self.keys.heads[identities[i]]
            if entry == NONE:
                missing += 1
            else:
                self.entries[entry].stamp = self.stamp
        if missing == 0:
            return STORE_PRESENT
        short = missing - (self.num_blocks - self.num_entries)
        self._reserve(max(short, n))
        self.num_evicted = 0
        entry = self.oldest
        while self.num_evicted < short and entry != NONE:
            if self.entries[entry].stamp != self.stamp:
                self.evicted[self.num_evicted] = entry
                self.num_evicted += 1
            entry = self.entries[entry].newer
        if self.num_evicted < short:
            self.num_evicted = 0
            return STORE_RETRY
        entries = <int32_t*>malloc(missing * sizeof(int32_t))
        if entries is NULL:
            with gil:
                raise MemoryError(f"store of {missing} blocks")
        for i in range(self.num_evicted):
            next_one = self.entries[self.evicted[i]].identity
            self._evict(self.evicted[i])
            self.evicted[i] = next_one
        transfer = push_transfer(&self.stores)
        transfer.entries, transfer.num_entries, transfer.end_ms = entries, missing, NAN
        transfer.number, transfer.ordinal = self.next_number, self.next_store
        transfer.request, transfer.slot, transfer.is_store = request, NONE, True
        transfer.from_ms, transfer.sources = INFINITY, NULL
        self.next_number += 1
        self.next_store += 1
        missing = 0
        for i in range(n):
            if self.keys.heads[identities[i]] == NONE:
                entry = self._new_entry()
                self.entries[entry].identity, self.entries[entry].store = identities[i], self.next_store - 1
                self.keys.heads[identities[i]] = entry
                self.keys.hold(identities[i] >> self.keys.shift)
                entries[missing] = entry
                missing += 1
        return self.next_store - 1

    cdef Transfer* next_to_submit(self, double at_ms) noexcept nogil:
        """Put the oldest prepared store on its lane; NULL when none is left."""
        cdef Transfer* transfer
        if self.num_submitted == self.stores.count:
            return NULL
        transfer = transfer_at(&self.stores, self.num_submitted)
        self.num_submitted += 1
        self.store_tail_ms = (max(self.store_tail_ms, at_ms + self.latency_ms)
                              + self._copy_ms(transfer.num_entries, self.d2h_gbps))
        transfer.end_ms = self.store_tail_ms
        return transfer

    # -- loads ------------------------------------------------------------------------------------

    cdef Transfer* schedule_load(self, const int32_t* identities, int64_t n, double not_before_ms, int32_t request,
                                 int32_t slot) except? NULL nogil:
        """Pin resident blocks and put their copy on the lane; NULL, and no change, when one is not there."""
        cdef int64_t i
        cdef int32_t entry
        cdef Transfer* transfer
        cdef int32_t* entries
        for i in range(n):
            entry = self.keys.heads[identities[i]]
            if entry == NONE or self.entries[entry].store != NONE:
                return NULL
        entries = <int32_t*>malloc(n * sizeof(int32_t))
        if entries is NULL:
            with gil:
                raise MemoryError(f"load of {n} blocks")
        for i in range(n):
            entry = self.keys.heads[identities[i]]
            if self.entries[entry].pins == 0:
                self._unlink(entry)
            self.entries[entry].pins += 1
            entries[i] = entry
        transfer = push_transfer(&self.loads)
        transfer.entries, transfer.num_entries = entries, n
        transfer.number, transfer.ordinal = self.next_number, self.next_load
        transfer.request, transfer.slot, transfer.is_store = request, slot, False
        transfer.from_ms, transfer.sources = INFINITY, NULL
        self.next_number += 1
        self.next_load += 1
        self.load_tail_ms = max(self.load_tail_ms, not_before_ms + self.latency_ms) + self._copy_ms(n, self.h2d_gbps)
        transfer.end_ms = self.load_tail_ms
        return transfer

    cdef int cancel_load(self, int64_t ordinal, Transfer* cancelled) except -1 nogil:
        """Forget a load under way; later ones keep their times. The caller frees `cancelled.entries`."""
        cdef int64_t i
        for i in range(self.loads.count):
            if transfer_at(&self.loads, i).ordinal == ordinal:
                take_transfer(&self.loads, i, cancelled)
                self._reserve(cancelled.num_entries)
                self._unpin(cancelled)
                return 0
        with gil:
            raise KeyError(f"load {ordinal} is not under way")

    # -- time and recency -------------------------------------------------------------------------

    cdef double next_end_ms(self) noexcept nogil:
        """When the next copy ends [ms]; INFINITY when none is on a lane."""
        cdef double at = INFINITY
        if self.num_submitted > 0:
            at = transfer_at(&self.stores, 0).end_ms
        if self.loads.count > 0:
            at = min(at, transfer_at(&self.loads, 0).end_ms)
        return at

    cdef int finish_next(self, double at_ms, Transfer* finished) except -1 nogil:
        """Finish one copy that ends by `at_ms`: the earliest, a store before a load. Returns 0 when there is none.

        The caller frees `finished.entries`.
        """
        cdef bint store
        self.now_ms = max(self.now_ms, at_ms)
        if not self.next_end_ms() <= at_ms:
            return 0
        store = self.num_submitted > 0 and (
            self.loads.count == 0 or transfer_at(&self.stores, 0).end_ms <= transfer_at(&self.loads, 0).end_ms)
        if store:
            take_transfer(&self.stores, 0, finished)
            self.num_submitted -= 1
        else:
            take_transfer(&self.loads, 0, finished)
        self.conclude(finished)
        return 1

    cdef int conclude(self, Transfer* done) except -1 nogil:
        """A copy has ended: what it brought is there, or what it read is available again."""
        cdef int64_t i
        self._reserve(done.num_entries)
        if not done.is_store:
            self._unpin(done)
            return 0
        for i in range(done.num_entries):
            self.entries[done.entries[i]].store = NONE
            self.cohort[i] = done.entries[i]
        self._enter_cohort(done.num_entries)
        return 0

    cdef void touch(self, int32_t identity) noexcept nogil:
        """A block was asked for: if it is there and nobody loads it, it is the newest now."""
        cdef int32_t entry = self.keys.heads[identity]
        if entry == NONE or self.entries[entry].store != NONE or self.entries[entry].pins > 0:
            return
        self._unlink(entry)
        self._link_newest(entry)

    # -- below ------------------------------------------------------------------------------------

    cdef double _copy_ms(self, int64_t num_blocks, double gbps) noexcept nogil:
        return <double>num_blocks * self.block_bytes / (gbps * 1e6) if gbps > 0.0 else 0.0

    cdef int32_t _new_entry(self) except -1 nogil:
        cdef int32_t entry = self.free_entry
        cdef HostEntry* grown
        if entry != NONE:
            self.free_entry = self.entries[entry].newer
        else:
            if self.entry_top == self.entry_capacity:
                if self.entry_capacity > 0x3fffffff:
                    with gil:
                        raise MemoryError("more than 2**31 blocks in host memory")
                grown = <HostEntry*>realloc(self.entries, max(256, <int64_t>self.entry_capacity * 2) * sizeof(HostEntry))
                if grown is NULL:
                    with gil:
                        raise MemoryError(f"host tier of {self.entry_capacity * 2} blocks")
                self.entries = grown
                self.entry_capacity = max(256, self.entry_capacity * 2)
            entry = self.entry_top
            self.entry_top += 1
        self.entries[entry].pins = 0
        self.entries[entry].stamp = self.stamp
        self.entries[entry].older = self.entries[entry].newer = NONE
        self.num_entries += 1
        return entry

    cdef void _evict(self, int32_t entry) noexcept nogil:
        cdef int32_t identity = self.entries[entry].identity
        self._unlink(entry)
        self.keys.heads[identity] = NONE
        self.keys.drop(identity >> self.keys.shift)
        self.entries[entry].identity = NONE
        self.entries[entry].newer = self.free_entry
        self.free_entry = entry
        self.num_entries -= 1

    cdef int _reserve(self, int64_t n) except -1 nogil:
        """Room for `n` victims and members of a cohort."""
        cdef int32_t* grown
        cdef int64_t capacity = max(64, 2 * n)
        if n > self.evicted_capacity or self.evicted is NULL:
            grown = <int32_t*>realloc(self.evicted, capacity * sizeof(int32_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{n} victims")
            self.evicted, self.evicted_capacity = grown, capacity
        if n > self.cohort_capacity or self.cohort is NULL:
            # Each member is sorted with its number.
            grown = <int32_t*>realloc(self.cohort, capacity * (sizeof(int32_t) + sizeof(Numbered)))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"cohort of {n} blocks")
            self.cohort, self.cohort_capacity = grown, capacity
        return 0

    cdef void _link_newest(self, int32_t entry) noexcept nogil:
        self.entries[entry].older = self.newest
        self.entries[entry].newer = NONE
        if self.newest == NONE:
            self.oldest = entry
        else:
            self.entries[self.newest].newer = entry
        self.newest = entry

    cdef void _unlink(self, int32_t entry) noexcept nogil:
        cdef HostEntry* it = &self.entries[entry]
        if it.older == NONE:
            self.oldest = it.newer
        else:
            self.entries[it.older].newer = it.newer
        if it.newer == NONE:
            self.newest = it.older
        else:
            self.entries[it.newer].older = it.older

    cdef void _enter_cohort(self, int64_t n) noexcept nogil:
        """The first `n` entries of `cohort` become the newest, lowest number first."""
        cdef Numbered* numbered = <Numbered*>(&self.cohort[self.cohort_capacity])
        cdef int64_t i
        for i in range(n):
            numbered[i].number = self.keys.hashes[self.entries[self.cohort[i]].identity]
            numbered[i].entry = self.cohort[i]
        qsort(numbered, n, sizeof(Numbered), _lowest_first)
        for i in range(n):
            self._link_newest(<int32_t>numbered[i].entry)

    cdef void _unpin(self, Transfer* load) noexcept nogil:
        """A load is over: what nobody else loads becomes available again."""
        cdef int64_t i
        cdef int64_t n = 0
        for i in range(load.num_entries):
            self.entries[load.entries[i]].pins -= 1
            if self.entries[load.entries[i]].pins == 0:
                self.cohort[n] = load.entries[i]
                n += 1
        self._enter_cohort(n)

    # -- test doors -------------------------------------------------------------------------------

    def key(self, uint64_t hash_id, uint64_t number):
        """Identity of a block of its own, that goes by `number` where ties are broken; it is held for good."""
        cdef int32_t node = self.keys.child(NONE, hash_id)
        self.keys.hold(node)
        self.keys.hashes[node << self.keys.shift] = number
        return node << self.keys.shift

    def py_prepare(self, identities):
        """Number of the transfer, "present" or "retry"; and what it evicted."""
        cdef int64_t ordinal
        cdef int32_t[::1] view
        import array
        view = array.array("i", dict.fromkeys(identities))
        ordinal = self.prepare_store(&view[0], view.shape[0], NONE)
        if ordinal < 0:
            return ("present" if ordinal == STORE_PRESENT else "retry"), []
        return self.next_number - 1, [self.evicted[i] for i in range(self.num_evicted)]

    def py_submit(self, double at_ms):
        """(number, end [ms]) of each store that was prepared."""
        submitted = []
        cdef Transfer* transfer = self.next_to_submit(at_ms)
        while transfer is not NULL:
            submitted.append((transfer.number, transfer.end_ms))
            transfer = self.next_to_submit(at_ms)
        return submitted

    def py_load(self, identities, double not_before_ms):
        """(number, ordinal, end [ms]), or None when a block is not there."""
        cdef Transfer* transfer
        cdef int32_t[::1] view
        import array
        view = array.array("i", identities)
        transfer = self.schedule_load(&view[0], view.shape[0], not_before_ms, NONE, NONE)
        return None if transfer is NULL else (transfer.number, transfer.ordinal, transfer.end_ms)

    def py_cancel(self, int64_t ordinal):
        """Forget a load under way."""
        cdef Transfer cancelled
        self.cancel_load(ordinal, &cancelled)
        free(cancelled.entries)

    def py_tick(self, double at_ms):
        """Numbers of the transfers that end by then, in order."""
        cdef Transfer finished
        ended = []
        while self.finish_next(at_ms, &finished):
            free(finished.entries)
            ended.append(finished.number)
        return ended

    def py_touch(self, int32_t identity):
        """A block was asked for."""
        self.touch(identity)

    def lru_order(self):
        """Identities in the order in which they would go."""
        order = []
        cdef int32_t entry = self.oldest
        while entry != NONE:
            order.append(self.entries[entry].identity)
            entry = self.entries[entry].newer
        return order

    @property
    def next_end(self):
        """When the next copy ends [ms]; inf when none is on a lane."""
        return self.next_end_ms()

    def check(self):
        """Walk everything and compare the counts; AssertionError on the first contradiction. O(entries)."""
        cdef int32_t entry
        cdef int64_t i, j
        cdef Transfer* transfer
        free_entries = set()
        entry = self.free_entry
        while entry != NONE:
            free_entries.add(entry)
            entry = self.entries[entry].newer
        used = [entry for entry in range(self.entry_top) if entry not in free_entries]
        assert len(used) == self.num_entries <= self.num_blocks, "entries lost, or more than there is room"
        pins = {}
        pending = {}
        for i in range(self.loads.count):
            transfer = transfer_at(&self.loads, i)
            for j in range(transfer.num_entries):
                pins[transfer.entries[j]] = pins.get(transfer.entries[j], 0) + 1
        for i in range(self.stores.count):
            transfer = transfer_at(&self.stores, i)
            assert (transfer.end_ms == transfer.end_ms) == (i < self.num_submitted), "prepared and submitted mixed up"
            assert transfer.ordinal == transfer_at(&self.stores, 0).ordinal + i, "stores out of order"
            for j in range(transfer.num_entries):
                pending[transfer.entries[j]] = transfer.ordinal
        listed = []
        entry = self.oldest
        while entry != NONE:
            listed.append(entry)
            entry = self.entries[entry].newer
        for entry in used:
            assert self.keys.heads[self.entries[entry].identity] == entry, "an entry its block does not lead to"
            assert self.entries[entry].store == pending.get(entry, NONE), "pending without a store"
            assert self.entries[entry].pins == pins.get(entry, 0), "pins without loads"
        expected = sorted(entry for entry in used if entry not in pending and entry not in pins)
        assert sorted(listed) == expected, "the LRU list holds others than the resident, unpinned ones"
        self.keys.check()
