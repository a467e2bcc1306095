"""A policy's part in a pass: the order in which waiting requests are tried, vetoes, victims, budgets.

Keeps the waiting queue a second time, in the order of the policy. Decides what a policy is asked and when, holds its
answers against the rules, and records each decision that differs from first come, first served. Never decides whether
there is room. Without a policy nothing here is in the way.
"""
from libc.math cimport isnan
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcpy, memmove

from .policy cimport DECIDE_BUDGET, DECIDE_ORDER, DECIDE_VETO, DECIDE_VICTIM, record_decision
from .prefix_index cimport Node
from .scheduler cimport Scheduler
from .types cimport NONE, STATUS_RUNNING

from .types import EngineError

cdef enum:
    MAX_MATCHES = 65535          # requests that can be counted at a node


cdef struct Ranked:
    double key
    int64_t number
    int64_t slot


cdef int _last_first(const void* a, const void* b) noexcept nogil:
    cdef const Ranked* x = <const Ranked*>a
    cdef const Ranked* y = <const Ranked*>b
    if x.key != y.key:
        return -1 if x.key > y.key else 1
    return (y.number > x.number) - (y.number < x.number)


cdef inline bint _goes_before(const Request* a, const Request* b) noexcept nogil:
    """Whether a is tried before b."""
    return a.order_key < b.order_key or (a.order_key == b.order_key and a.queue_number < b.queue_number)


cdef class PolicyScheduler(CalendarScheduler):
    def __dealloc__(self):
        free(self.order)
        free(self.unordered)

    cdef int set_policy(self, SchedulingPolicy policy) except -1:
        if policy is not None and policy.max_matches > MAX_MATCHES:
            raise ValueError(f"a policy looks prefixes up for at most {MAX_MATCHES} requests (got {policy.max_matches})")
        self.policy = policy
        self.has_policy = policy is not None
        self.first_number = -1
        return 0

    cdef void _look_at_rank(self) noexcept nogil:
        """Bring the view up to date; a pass that has not begun yet is the one meant."""
        cdef RankView* view = &self.view
        view.worker, view.rank = self.worker, self.rank
        view.num_running, view.num_waiting = self.num_running, self.num_waiting
        view.block_size, view.num_blocks = self.block_size, self.pool.num_blocks
        view.num_free_blocks = self.pool.num_blocks - self.pool.active()
        view.max_num_seqs, view.max_num_batched_tokens = self.max_num_seqs, self.max_num_batched_tokens
        view.budget_tokens = self.budget
        view.steps = self.steps
        view.requests, view.running = self.requests.slots, self.running

    # -- the budget -------------------------------------------------------------------------------

    cdef int64_t pass_budget(self) except -1 nogil:
        """Tokens of the pass that is about to begin."""
        cdef int64_t tokens
        if not self.has_policy or not self.policy.limits_budget:
            return self.max_num_batched_tokens
        self.budget = self.max_num_batched_tokens
        self._look_at_rank()
        tokens = self.policy.token_budget(&self.view)
        if tokens < 1 or tokens > self.max_num_batched_tokens:
            with gil:
                raise EngineError(f"policy {type(self.policy).__name__}: token_budget must lie from 1 to "
                                  f"max_num_batched_tokens {self.max_num_batched_tokens} (got {tokens})")
        return tokens

    cdef int tell_budget(self) except -1 nogil:
        """The pass has begun: record a budget that is not the whole one."""
        if self.has_policy and self.budget < self.max_num_batched_tokens:
            self._decide(DECIDE_BUDGET, NONE, NONE, self.budget)
        return 0

    # -- the queue --------------------------------------------------------------------------------

    cdef int push_waiting(self, int32_t slot, bint front) except -1 nogil:
        cdef Request* request
        if self.has_policy:
            if self.num_ordered + self.num_unordered == self.order_capacity:
                self._reserve_order()
            request = &self.requests.slots[slot]
            if front:
                request.queue_number = self.first_number
                self.first_number -= 1
            else:
                request.queue_number = self.next_number
                self.next_number += 1
            request.order_told = False
            self.unordered[self.num_unordered] = slot
            self.num_unordered += 1
        return Scheduler.push_waiting(self, slot, front)

    cdef int _reserve_order(self) except -1 nogil:
        cdef int64_t capacity = max(64, self.order_capacity * 2)
        cdef int32_t* order = <int32_t*>realloc(self.order, capacity * sizeof(int32_t))
        cdef int32_t* unordered
        if order is not NULL:
            self.order = order
        unordered = <int32_t*>realloc(self.unordered, capacity * sizeof(int32_t))
        if unordered is not NULL:
            self.unordered = unordered
        if order is NULL or unordered is NULL:
            with gil:
                raise MemoryError(f"order of {capacity} waiting requests")
        self.order_capacity = capacity
        return 0

    cdef int open_queue(self) except -1 nogil:
        """Put the queue in order, before the first request is tried in a pass."""
        cdef int64_t i
        if not self.has_policy:
            return 0
        self.num_vetoed = 0
        if self._must_order_anew():
            return self._order_anew()
        if self.num_unordered == 0:
            return 0
        self._look_at_rank()
        for i in range(self.num_unordered):
            self._give_key(self.unordered[i])
            self._insert(self.unordered[i])
        self.num_unordered = 0
        return 0

    cdef bint _must_order_anew(self) noexcept nogil:
        """Whether keys of requests that waited before can be others now."""
        if not self.policy.reorders:
            return False
        if not self.policy.by_match:
            return True
        if not self.prefix_caching:
            return False
        if self.matching != (self.num_waiting <= self.policy.max_matches):
            return True
        return self.matching and self.pool.watch_dirty

    cdef void _watch(self, Request* request, int64_t num_nodes) noexcept nogil:
        """Count a request at the first so many of its nodes, those of its prompt and then its own; 0 ends that.

        A pass may give it more nodes before it leaves the queue.
        """
        cdef int64_t i
        cdef Node* node
        for i in range(min(num_nodes, request.num_watched), max(num_nodes, request.num_watched)):
            if i < request.path_length:
                node = &self.index.nodes[request.path[i]]
            else:
                node = &self.index.nodes[request.private_nodes[i - request.path_length]]
            node.watched = node.watched + 1 if num_nodes > request.num_watched else node.watched - 1
        request.num_watched = num_nodes

    cdef int _give_key(self, int32_t slot) except -1 nogil:
        cdef Request* request = &self.requests.slots[slot]
        cdef double key = 0.0
        if self.policy.orders:
            request.match_tokens = 0
            if self.policy.wants_matches and self.num_waiting <= self.policy.max_matches:
                self.look_up(request)
                request.match_tokens = self.num_hits * self.block_size
                if self.policy.by_match:
                    self._watch(request, request.path_length + request.num_private_nodes)
            key = self.policy.order_key(&self.view, request)
            if isnan(key):
                with gil:
                    raise EngineError(f"policy {type(self.policy).__name__}: order_key must be a number "
                                      f"(got {key} for row {request.ordinal})")
        request.order_key = key
        return 0

    cdef void _insert(self, int32_t slot) noexcept nogil:
        """Enter a request behind all that are tried after it."""
        cdef Request* requests = self.requests.slots
        cdef int64_t low = 0
        cdef int64_t high = self.num_ordered
        cdef int64_t middle
        while low < high:
            middle = (low + high) // 2
            if _goes_before(&requests[slot], &requests[self.order[middle]]):
                low = middle + 1
            else:
                high = middle
        memmove(&self.order[low + 1], &self.order[low], (self.num_ordered - low) * sizeof(int32_t))
        self.order[low] = slot
        self.num_ordered += 1

    cdef int _order_anew(self) except -1 nogil:
        """Ask for the keys of all who wait, and sort."""
        cdef int64_t n = self.num_ordered + self.num_unordered
        cdef int64_t i
        cdef Ranked* ranked
        self.matching = self.policy.wants_matches and self.num_waiting <= self.policy.max_matches
        self.pool.watch_dirty = False
        memcpy(&self.order[self.num_ordered], self.unordered, self.num_unordered * sizeof(int32_t))
        self.num_ordered, self.num_unordered = n, 0
        if n == 0:
            return 0
        ranked = <Ranked*>malloc(n * sizeof(Ranked))
        if ranked is NULL:
            with gil:
                raise MemoryError(f"order of {n} waiting requests")
        try:
            self._look_at_rank()
            for i in range(n):
                self._give_key(self.order[i])
                ranked[i].key = self.requests.slots[self.order[i]].order_key
                ranked[i].number = self.requests.slots[self.order[i]].queue_number
                ranked[i].slot = self.order[i]
            qsort(ranked, n, sizeof(Ranked), _last_first)
            for i in range(n):
                self.order[i] = <int32_t>ranked[i].slot
        finally:
            free(ranked)
        return 0

    cdef bint any_candidate(self) noexcept nogil:
        """Somebody waits who was not held back in this pass."""
        return self.num_waiting > self.num_vetoed

    cdef int32_t candidate(self) noexcept nogil:
        """The request to be tried next; there must be one."""
        if self.has_policy:
            return self.order[self.num_ordered - 1 - self.num_vetoed]
        return self.waiting[self.waiting_head]

    cdef int tell_order(self, int32_t slot) except -1 nogil:
        """A request is tried now: record, once while it waits, that it came after another one that still waits."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Request* first
        cdef int64_t i = 0
        if not self.has_policy or request.order_told:
            return 0
        while True:
            first = &self.requests.slots[self.waiting[(self.waiting_head + i) & self.waiting_mask]]
            if first.vetoed_pass != self.pass_number:
                break
            i += 1
        if first == request:
            return 0
        request.order_told = True
        return self._decide(DECIDE_ORDER, request.ordinal, first.ordinal, 0)

    cdef bint admits(self, int32_t slot) except -1 nogil:
        """Whether the policy lets a request in for which there is room; else it is held back in this pass."""
        cdef Request* request = &self.requests.slots[slot]
        if not self.has_policy or not self.policy.vetoes:
            return True
        self._look_at_rank()
        if self.policy.may_admit(&self.view, request):
            return True
        request.vetoed_pass = self.pass_number
        self.num_vetoed += 1
        self._decide(DECIDE_VETO, request.ordinal, NONE, 0)
        return False

    cdef int32_t pop_waiting(self) noexcept nogil:
        cdef int32_t slot
        if not self.has_policy:
            return Scheduler.pop_waiting(self)
        slot = self.candidate()
        self._forget_waiting(slot)
        return slot

    cdef int _take_out(self, int32_t slot) noexcept nogil:
        cdef int64_t i
        if self.has_policy and self.requests.slots[slot].status != STATUS_RUNNING:
            for i in range(self.num_aside):
                if self.aside[i] == slot:
                    return Scheduler._take_out(self, slot)
            return self._forget_waiting(slot)
        return Scheduler._take_out(self, slot)

    cdef int64_t _place_in_ring(self, int32_t slot) noexcept nogil:
        """Position in the queue as it came, from its head; queue numbers ascend there."""
        cdef int64_t number = self.requests.slots[slot].queue_number
        cdef int64_t low = 0
        cdef int64_t high = self.num_waiting - 1
        cdef int64_t middle
        while low < high:
            middle = (low + high) // 2
            if self.requests.slots[self.waiting[(self.waiting_head + middle) & self.waiting_mask]].queue_number < number:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int _forget_waiting(self, int32_t slot) noexcept nogil:
        """A request waits no longer: take it out of the queue as it came and out of the order."""
        cdef int64_t at = self._place_in_ring(slot)
        cdef int64_t i
        self._count_waiting(slot, -1)
        if at < self.num_waiting - at:
            for i in range(at, 0, -1):
                self.waiting[(self.waiting_head + i) & self.waiting_mask] = (
                    self.waiting[(self.waiting_head + i - 1) & self.waiting_mask])
            self.waiting_head = (self.waiting_head + 1) & self.waiting_mask
        else:
            for i in range(at + 1, self.num_waiting):
                self.waiting[(self.waiting_head + i - 1) & self.waiting_mask] = (
                    self.waiting[(self.waiting_head + i) & self.waiting_mask])
        self.num_waiting -= 1
        self._watch(&self.requests.slots[slot], 0)
        for i in range(self.num_ordered - 1, -1, -1):
            if self.order[i] == slot:
                self.num_ordered -= 1
                memmove(&self.order[i], &self.order[i + 1], (self.num_ordered - i) * sizeof(int32_t))
                return 0
        for i in range(self.num_unordered):
            if self.unordered[i] == slot:
                self.num_unordered -= 1
                memmove(&self.unordered[i], &self.unordered[i + 1], (self.num_unordered - i) * sizeof(int32_t))
                return 0
        return 0

    cdef int check_not_stuck(self) except -1 nogil:
        """A pass had no effect: that is no way to wait, since nothing that could end a veto comes of it."""
        if self.num_vetoed == 0 or self.any_candidate():
            return 0
        with gil:
            raise EngineError(f"policy {type(self.policy).__name__}: worker {self.worker} rank {self.rank} runs nothing, and "
                              f"all {self.num_vetoed} requests that could enter are held back (row {self._first_vetoed()})")

    def _first_vetoed(self):
        return self.requests.slots[self.order[self.num_ordered - 1]].ordinal

    def check(self):
        """As BlockScheduler.check, and the order of the queue against the queue as it came."""
        cdef int64_t i
        CalendarScheduler.check(self)
        if not self.has_policy:
            return
        came = [self.waiting[(self.waiting_head + i) & self.waiting_mask] for i in range(self.num_waiting)]
        numbers = [self.requests.slots[slot].queue_number for slot in came]
        assert numbers == sorted(set(numbers)), "the queue is not in the order in which it came"
        ordered = [self.order[i] for i in range(self.num_ordered)]
        new = [self.unordered[i] for i in range(self.num_unordered)]
        assert sorted(came) == sorted(ordered + new), "the order holds others than those who wait"
        keys = [(self.requests.slots[slot].order_key, self.requests.slots[slot].queue_number) for slot in ordered]
        assert keys == sorted(keys, reverse=True), "the order is none"
        watched = {}
        for slot in came:
            if self.requests.slots[slot].num_watched > 0:
                nodes = [self.requests.slots[slot].path[i] for i in range(self.requests.slots[slot].path_length)]
                nodes += [self.requests.slots[slot].private_nodes[i]
                          for i in range(self.requests.slots[slot].num_private_nodes)]
                assert len(nodes) == self.requests.slots[slot].num_watched, "a node of one who waits is not watched"
                for node in nodes:
                    watched[node] = watched.get(node, 0) + 1
        if self.has_policy and self.policy.by_match and not self.pool.watch_dirty and self.matching:
            for slot in ordered:
                self.look_up(&self.requests.slots[<int64_t>slot])
                assert self.requests.slots[slot].match_tokens == self.num_hits * self.block_size, "an order out of date"
        for node, count in watched.items():
            assert self.index.nodes[<int64_t>node].watched == count, "watched by others than those who wait"

    # -- victims ----------------------------------------------------------------------------------

    cdef int64_t victim_at(self, int64_t usual) except -1 nogil:
        """Index in running of the request to be preempted; `usual` is the one that preemption_mode says."""
        cdef int64_t at
        if not self.has_policy or not self.policy.chooses_victims:
            return usual
        self._look_at_rank()
        at = self.policy.choose_victim(&self.view)
        if at < 0 or at >= self.num_running:
            with gil:
                raise EngineError(f"policy {type(self.policy).__name__}: choose_victim must be an index of the "
                                  f"{self.num_running} running requests (got {at})")
        if at != usual:
            self._decide(DECIDE_VICTIM, self.requests.slots[self.running[at]].ordinal,
                         self.requests.slots[self.running[usual]].ordinal, 0)
            # Whoever was to be looked at next must not be skipped for an earlier one that disappears.
            if at < self.scan_at:
                self.scan_at -= 1
        return at

    # -- records ----------------------------------------------------------------------------------

    cdef int _decide(self, int decision, int32_t request, int32_t other, int64_t value) except -1 nogil:
        """Record a decision that differs from first come, first served."""
        return record_decision(self.start_events, self.pass_start_ms, self.worker, self.rank, request, decision, other, value,
                               self.policy.reason(decision))
