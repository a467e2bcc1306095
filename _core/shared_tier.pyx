"""A host tier that ranks share: one set of entries, and copies that share bandwidth.

Every copy under way gets an equal share of what the pool has for its direction and of the link of its rank, whichever is
less. Shares change with every copy that begins or ends, so an end is known only while nothing else happens, and the bytes
that are left are counted anew at every moment at which a member looks at the tier (as on the reference, to the last bit).
A copy that has ended is there for everybody at once; its own member takes it when it comes by.

Decides: when a copy ends. Never decides what is stored or loaded, nor what a member does when it is woken.
Source: hand-off and offload specification, section 14.
"""
from libc.math cimport INFINITY, NAN
from libc.stdlib cimport calloc, free, malloc, realloc

from .offload cimport HostTier, free_ring, push_transfer, take_transfer, transfer_at


cdef bint _any_of(TransferRing* ring, int32_t member) noexcept nogil:
    cdef int64_t i
    for i in range(ring.count):
        if transfer_at(ring, i).member == member:
            return True
    return False


cdef bint _goes_before(Transfer* one, Transfer* other) noexcept nogil:
    """Of copies of one direction that end at the same time the one that was prepared first goes first."""
    return one.is_store == other.is_store and one.end_ms == other.end_ms and one.ordinal < other.ordinal


cdef class SharedTier(HostTier):
    """Host memory of several ranks.

    Args:
        num_members: ranks, numbered in the order in which they join.
        shared_d2h_gbps, shared_h2d_gbps: bandwidth of all of them together [10^9 bytes/s]; 0 = no limit.
        The rest as in HostTier; bandwidths and latency are those of the link of each rank, see `set_link`.
    """

    def __cinit__(self, int64_t num_blocks, double block_bytes, double d2h_gbps, double h2d_gbps, double latency_ms,
                  int64_t block_size, int64_t trace_block_size, double shared_d2h_gbps, double shared_h2d_gbps,
                  int32_t num_members):
        cdef int32_t i
        self.shared_d2h_gbps, self.shared_h2d_gbps = shared_d2h_gbps, shared_h2d_gbps
        self.woken = <char*>calloc(num_members, 1)
        self.links = <Link*>malloc(num_members * sizeof(Link))
        if self.woken is NULL or self.links is NULL:
            raise MemoryError(f"{num_members} members")
        for i in range(num_members):
            self.set_link(i, d2h_gbps, h2d_gbps, latency_ms)
        self.end_ms[0] = self.end_ms[1] = INFINITY

    def set_link(self, int32_t member, double d2h_gbps, double h2d_gbps, double latency_ms):
        """A member, which need not have joined yet, has another link than the others."""
        self.links[member].d2h_gbps, self.links[member].h2d_gbps = d2h_gbps, h2d_gbps
        self.links[member].latency_ms = latency_ms

    def __dealloc__(self):
        free_ring(&self.delivered)
        free(self.woken)
        free(self.links)
        free(self.left)

    cdef int32_t join(self) except -1:
        """Number of one more member."""
        self.num_members += 1
        return self.num_members - 1

    # -- what members ask -------------------------------------------------------------------------

    cdef double next_of(self, int32_t member) noexcept nogil:
        """When a member should come by next [ms], when a copy begins or ends; INFINITY when nothing is under way."""
        cdef int64_t i
        if self.woken[member]:
            return self.clock_ms
        for i in range(self.delivered.count):
            if transfer_at(&self.delivered, i).member == member:
                return self.clock_ms
        return min(min(self._next_end(True), self._next_end(False)),
                   min(self._next_begin(&self.stores), self._next_begin(&self.loads)))

    cdef bint copies_of(self, int32_t member) noexcept nogil:
        """Whether a copy of this member is under way or was not taken."""
        return _any_of(&self.stores, member) or _any_of(&self.loads, member) or _any_of(&self.delivered, member)

    cdef bint take(self, int32_t member, Transfer* out) noexcept nogil:
        """The first of its own copies that have ended; False when there is none. What it owns is the caller's."""
        cdef int64_t i
        for i in range(self.delivered.count):
            if transfer_at(&self.delivered, i).member == member:
                take_transfer(&self.delivered, i, out)
                return True
        return False

    cdef bint take_wake(self, int32_t member) noexcept nogil:
        """Whether copies of others have ended since it last came by."""
        cdef bint woken = self.woken[member]
        self.woken[member] = 0
        return woken

    cdef bint submit_of(self, int32_t member, double at_ms, Transfer* submitted) except -1 nogil:
        """Put its oldest prepared store on its way; False when it has none left."""
        cdef int64_t i
        cdef Transfer* store
        for i in range(self.stores.count):
            store = transfer_at(&self.stores, i)
            if store.member == member and store.from_ms == INFINITY:
                submitted[0] = store[0]
                return self.begin_copy(store, member, at_ms) == 0
        return False

    cdef int begin_copy(self, Transfer* load, int32_t member, double at_ms) except -1 nogil:
        """A copy begins; it may have ended when this returns."""
        cdef bint is_store = load.is_store
        cdef int64_t ordinal = load.ordinal
        cdef TransferRing* ring = &self.stores if is_store else &self.loads
        cdef int64_t i
        load.from_ms, load.member = INFINITY, member
        self.advance(at_ms)                  # which moves it, if others end
        for i in range(ring.count):
            if transfer_at(ring, i).ordinal == ordinal:
                load = transfer_at(ring, i)
        load.from_ms = at_ms + self.links[member].latency_ms
        load.left_bytes = <double>load.num_entries * self.block_bytes
        load.end_ms = NAN
        self._reserve_left(ring.count)
        self.end_ms[is_store] = NAN
        self.advance(at_ms)
        return 0

    cdef bint store_in_flight(self, int64_t ordinal) noexcept nogil:
        cdef int64_t i
        for i in range(self.stores.count):
            if transfer_at(&self.stores, i).ordinal == ordinal:
                return True
        return False

    cdef int64_t prepare_store(self, const int32_t* identities, int64_t n, int32_t request) except? -1 nogil:
        cdef int64_t ordinal = HostTier.prepare_store(self, identities, n, request)
        self._reserve_left(self.stores.count)
        return ordinal

    cdef Transfer* schedule_load(self, const int32_t* identities, int64_t n, double not_before_ms, int32_t request,
                                 int32_t slot) except? NULL nogil:
        """As HostTier.schedule_load; it begins with `begin_copy`."""
        cdef Transfer* load = HostTier.schedule_load(self, identities, n, not_before_ms, request, slot)
        self._reserve_left(self.loads.count)
        return load

    cdef void claim_store(self, int32_t member, int32_t* sources) noexcept nogil:
        """The store that was just prepared is a member's, and holds these copies on its device."""
        cdef Transfer* store = transfer_at(&self.stores, self.stores.count - 1)
        store.member, store.sources = member, sources

    cdef int cancel_load(self, int64_t ordinal, Transfer* cancelled) except -1 nogil:
        """As HostTier.cancel_load, also when it has ended and was not taken. The caller has called `advance`."""
        cdef int64_t i
        for i in range(self.delivered.count):
            if not transfer_at(&self.delivered, i).is_store and transfer_at(&self.delivered, i).ordinal == ordinal:
                take_transfer(&self.delivered, i, cancelled)
                return 0
        self.end_ms[False] = NAN             # the others share what it gives back
        return HostTier.cancel_load(self, ordinal, cancelled)

    # -- time -------------------------------------------------------------------------------------

    cdef int advance(self, double at_ms) except -1 nogil:
        """Whatever ends by then has ended, in order: the earlier first, a store before a load. Whenever a copy begins or
        ends, those of the other direction are counted, too."""
        cdef double store_ms, load_ms, begin_ms
        while True:
            store_ms, load_ms = self._next_end(True), self._next_end(False)
            begin_ms = min(self._next_begin(&self.stores), self._next_begin(&self.loads))
            if not min(begin_ms, min(store_ms, load_ms)) <= at_ms:
                break
            self._count(min(begin_ms, min(store_ms, load_ms)))
            if begin_ms < min(store_ms, load_ms):
                continue
            if store_ms <= load_ms:
                self._deliver(True, store_ms)
            else:
                self._deliver(False, load_ms)
        self._count(at_ms)
        self.now_ms = self.clock_ms
        return 0

    cdef void _count(self, double at_ms) noexcept nogil:
        """Count what was copied until then in both directions; nothing ends before."""
        self._run_to(True, max(at_ms, self.counted_ms[True]))
        self._run_to(False, max(at_ms, self.counted_ms[False]))
        self.clock_ms = max(self.clock_ms, at_ms)

    cdef int _deliver(self, bint is_store, double end_ms) except -1 nogil:
        """What ends at the next end of a direction has ended, in the order in which it was prepared."""
        cdef Transfer* done
        cdef int64_t first = self.delivered.count
        cdef int64_t i, j
        self._take_ended(is_store, end_ms)
        while self._next_end(is_store) <= end_ms:    # rounding left something of a copy that ends with another
            self._run_to(is_store, end_ms)
            self._take_ended(is_store, end_ms)
        for i in range(first, self.delivered.count):
            done = transfer_at(&self.delivered, i)
            self.conclude(done)
            for j in range(self.num_members):
                if j != done.member:
                    self.woken[j] = 1
        return 0

    cdef int _take_ended(self, bint is_store, double end_ms) except -1 nogil:
        """Copies of a direction of which nothing is left go to those that have ended, by their number."""
        cdef TransferRing* ring = &self.stores if is_store else &self.loads
        cdef Transfer ended
        cdef int64_t i = 0
        cdef int64_t j
        while i < ring.count:
            if transfer_at(ring, i).from_ms > end_ms or transfer_at(ring, i).left_bytes > 0.0:
                i += 1
                continue
            take_transfer(ring, i, &ended)
            ended.end_ms = end_ms
            push_transfer(&self.delivered)
            j = self.delivered.count - 1
            while j > 0 and _goes_before(&ended, transfer_at(&self.delivered, j - 1)):
                transfer_at(&self.delivered, j)[0] = transfer_at(&self.delivered, j - 1)[0]
                j -= 1
            transfer_at(&self.delivered, j)[0] = ended
        self.end_ms[is_store] = NAN
        return 0

    cdef double _rate(self, bint is_store, TransferRing* ring, Transfer* transfer, double now_ms) noexcept nogil:
        """Share of a copy that has begun [bytes/ms]."""
        cdef Link* own = &self.links[transfer.member]
        cdef double link = own.d2h_gbps if is_store else own.h2d_gbps
        cdef double pool = self.shared_d2h_gbps if is_store else self.shared_h2d_gbps
        cdef double rate = INFINITY
        cdef int64_t i
        cdef int64_t num_all = 0
        cdef int64_t num_own = 0
        for i in range(ring.count):
            if transfer_at(ring, i).from_ms <= now_ms:
                num_all += 1
                num_own += transfer_at(ring, i).member == transfer.member
        if link > 0.0:
            rate = link * 1e6 / <double>num_own
        if pool > 0.0:
            rate = min(rate, pool * 1e6 / <double>num_all)
        return rate

    cdef bint _step(self, bint is_store, double* now_ms, double to_ms) noexcept nogil:
        """Copy until the next copy begins or ends, or until `to_ms`, in the scratch; whether one ended."""
        cdef TransferRing* ring = &self.stores if is_store else &self.loads
        cdef double* rates = &self.left[self.left_capacity]
        cdef double* ends_ms = &self.left[2 * self.left_capacity]
        cdef double then_ms = to_ms
        cdef bint ended = False
        cdef int64_t i
        for i in range(ring.count):
            ends_ms[i] = INFINITY
            if transfer_at(ring, i).from_ms > now_ms[0]:
                then_ms = min(then_ms, transfer_at(ring, i).from_ms)
            else:
                rates[i] = self._rate(is_store, ring, transfer_at(ring, i), now_ms[0])
                ends_ms[i] = now_ms[0] + self.left[i] / rates[i]
                then_ms = min(then_ms, ends_ms[i])
        for i in range(ring.count):
            if transfer_at(ring, i).from_ms <= now_ms[0]:
                if ends_ms[i] <= then_ms:
                    self.left[i] = 0.0
                    ended = True
                else:
                    self.left[i] -= (then_ms - now_ms[0]) * rates[i]
        now_ms[0] = then_ms
        return ended

    cdef void _read_left(self, bint is_store) noexcept nogil:
        cdef TransferRing* ring = &self.stores if is_store else &self.loads
        cdef int64_t i
        for i in range(ring.count):
            self.left[i] = transfer_at(ring, i).left_bytes

    cdef double _next_end(self, bint is_store) noexcept nogil:
        """When the next copy of a direction ends, if nothing else happens until then; INFINITY when none is on its way."""
        cdef double now_ms = self.counted_ms[is_store]
        cdef bint ended = False
        if self.end_ms[is_store] != self.end_ms[is_store]:
            self._read_left(is_store)
            while not ended and now_ms < INFINITY:
                ended = self._step(is_store, &now_ms, INFINITY)
            self.end_ms[is_store] = now_ms
        return self.end_ms[is_store]

    cdef double _next_begin(self, TransferRing* ring) noexcept nogil:
        """First byte of the next copy of a direction that waits for its own; INFINITY when none does."""
        cdef double at = INFINITY
        cdef int64_t i
        for i in range(ring.count):
            if transfer_at(ring, i).from_ms > self.clock_ms:
                at = min(at, transfer_at(ring, i).from_ms)
        return at

    cdef void _run_to(self, bint is_store, double to_ms) noexcept nogil:
        """Count what was copied until then; nothing ends before."""
        cdef TransferRing* ring = &self.stores if is_store else &self.loads
        cdef int64_t i
        self._read_left(is_store)
        while self.counted_ms[is_store] < to_ms:
            self._step(is_store, &self.counted_ms[is_store], to_ms)
        self._step(is_store, &self.counted_ms[is_store], to_ms)
        for i in range(ring.count):
            if transfer_at(ring, i).from_ms < INFINITY:
                transfer_at(ring, i).left_bytes = self.left[i]
        if ring.count > 0:
            self.end_ms[is_store] = NAN

    cdef int _reserve_left(self, int64_t n) except -1 nogil:
        """Scratch for `n` copies of a direction: what is left of each, its share, its end."""
        cdef double* grown
        if n > self.left_capacity:
            grown = <double*>realloc(self.left, 6 * n * sizeof(double))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{n} copies")
            self.left, self.left_capacity = grown, 2 * n
        return 0

    def figures(self):
        """(blocks it holds, resident blocks, blocks in use) now."""
        cdef int64_t i
        cdef int64_t pending = 0
        for i in range(self.stores.count):
            pending += transfer_at(&self.stores, i).num_entries
        return self.num_blocks, self.num_entries - pending, self.num_entries
