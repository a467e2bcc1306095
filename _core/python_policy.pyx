"""A policy written in Python, behind the seam of those written in C.

Decides which hooks are asked: those that the class of the object has of its own. What a hook is given is a copy; nothing
a policy keeps or changes can reach the engine.
"""
cimport cython
from libc.stdint cimport int64_t

from .policy cimport RankView, SchedulingPolicy, generated_tokens
from .request_table cimport Request

from .types import EngineError


@cython.final
cdef class RequestFacts:
    """A request as a policy sees it: a copy.

    Attributes:
        row: row of the trace, from 0; in a live engine the number of the request.
        input_tokens, output_tokens: lengths asked for. generated_tokens: output so far.
        computed_tokens: of prompt and output, those whose cache entries exist; 0 after a preemption.
        match_tokens: prompt tokens found in the prefix cache when it was last ordered; only with `wants_matches`.
        num_blocks: KV blocks held. num_preemptions, num_admissions: how often so far.
        priority: of the row, 0 if it has none. arrival_ms: when it reached the router.
        deadline_ms: arrival plus the row's `deadline_ms`; inf if it has none.
    """
    cdef readonly int64_t row
    cdef readonly int64_t input_tokens
    cdef readonly int64_t output_tokens
    cdef readonly int64_t generated_tokens
    cdef readonly int64_t computed_tokens
    cdef readonly int64_t match_tokens
    cdef readonly int64_t num_blocks
    cdef readonly int64_t num_preemptions
    cdef readonly int64_t num_admissions
    cdef readonly int64_t priority
    cdef readonly double arrival_ms
    cdef readonly double deadline_ms

    def __init__(self, int64_t row=0, int64_t input_tokens=0, int64_t output_tokens=0, *, int64_t priority=0,
                 double arrival_ms=0.0, double deadline_ms=float("inf")):
        self.row, self.input_tokens, self.output_tokens = row, input_tokens, output_tokens
        self.priority, self.arrival_ms, self.deadline_ms = priority, arrival_ms, deadline_ms

    def __repr__(self):
        return (f"RequestFacts(row={self.row}, input_tokens={self.input_tokens}, output_tokens={self.output_tokens}, "
                f"generated_tokens={self.generated_tokens}, priority={self.priority}, arrival_ms={self.arrival_ms})")


@cython.final
cdef class RankFacts:
    """A rank as a policy sees it: a copy, as it is when the hook is asked. One may be made by hand to test a policy.

    Attributes:
        worker, rank: which one. now_ms: modelled time, the start of the pass. pass_number: of this rank, from 0.
        num_running, num_waiting: requests; preempted ones wait.
        block_size: tokens of a block. num_blocks, num_free_blocks: of the pool; free ones may be cached, but nobody's.
        max_num_seqs, max_num_batched_tokens: limits; 2^63-1 where there is none. budget_tokens: left in this pass.
    """
    cdef readonly int64_t worker
    cdef readonly int64_t rank
    cdef readonly double now_ms
    cdef readonly int64_t pass_number
    cdef readonly int64_t num_running
    cdef readonly int64_t num_waiting
    cdef readonly int64_t block_size
    cdef readonly int64_t num_blocks
    cdef readonly int64_t num_free_blocks
    cdef readonly int64_t max_num_seqs
    cdef readonly int64_t max_num_batched_tokens
    cdef readonly int64_t budget_tokens

    def __init__(self, int64_t worker=0, int64_t rank=0, *, double now_ms=0.0, int64_t pass_number=0, int64_t num_running=0,
                 int64_t num_waiting=0, int64_t block_size=64, int64_t num_blocks=16384, int64_t num_free_blocks=16384,
                 int64_t max_num_seqs=256, int64_t max_num_batched_tokens=8192, int64_t budget_tokens=8192):
        self.worker, self.rank, self.now_ms, self.pass_number = worker, rank, now_ms, pass_number
        self.num_running, self.num_waiting = num_running, num_waiting
        self.block_size, self.num_blocks, self.num_free_blocks = block_size, num_blocks, num_free_blocks
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.budget_tokens = budget_tokens

    def __repr__(self):
        return (f"RankFacts(worker={self.worker}, rank={self.rank}, now_ms={self.now_ms}, pass_number={self.pass_number}, "
                f"num_running={self.num_running}, num_waiting={self.num_waiting}, num_free_blocks={self.num_free_blocks})")


cdef RequestFacts _request_facts(const RankView* view, const Request* request):
    cdef RequestFacts facts = RequestFacts.__new__(RequestFacts)
    facts.row = request.ordinal
    facts.input_tokens, facts.output_tokens = request.n_in, request.n_out
    facts.generated_tokens = generated_tokens(view, request)
    facts.computed_tokens = request.n_in + facts.generated_tokens - 1 if request.steady else request.computed
    facts.match_tokens = request.match_tokens
    facts.num_blocks = request.table_length
    facts.num_preemptions, facts.num_admissions = request.num_preemptions, request.num_admissions
    facts.priority = request.terms.priority
    facts.arrival_ms, facts.deadline_ms = request.terms.arrival_ms, request.terms.deadline_ms
    return facts


cdef RankFacts _rank_facts(const RankView* view):
    cdef RankFacts facts = RankFacts.__new__(RankFacts)
    facts.worker, facts.rank = view.worker, view.rank
    facts.now_ms, facts.pass_number = view.now_ms, view.pass_number
    facts.num_running, facts.num_waiting = view.num_running, view.num_waiting
    facts.block_size, facts.num_blocks, facts.num_free_blocks = view.block_size, view.num_blocks, view.num_free_blocks
    facts.max_num_seqs, facts.max_num_batched_tokens = view.max_num_seqs, view.max_num_batched_tokens
    facts.budget_tokens = view.budget_tokens
    return facts


@cython.final
cdef class PythonPolicy(SchedulingPolicy):
    """Asks an object with the hooks of `mocker_replay.policies.Policy`.

    Args:
        target: the object. hooks: names of the hooks to ask.
        reorders, max_matches: as in SchedulingPolicy; max_matches 0 looks no prefix up.
    """
    cdef readonly object target
    cdef object _order_key
    cdef object _choose_victim
    cdef object _may_admit
    cdef object _token_budget
    cdef bytes _reason

    def __init__(self, target, hooks, *, bint reorders=False, int64_t max_matches=0):
        self.target = target
        self.orders = "order_key" in hooks
        self.reorders = self.orders and reorders
        self.wants_matches = self.orders and max_matches > 0
        self.max_matches = max_matches
        self.chooses_victims = "choose_victim" in hooks
        self.vetoes = "may_admit" in hooks
        self.limits_budget = "token_budget" in hooks
        self._order_key, self._choose_victim = target.order_key, target.choose_victim
        self._may_admit, self._token_budget = target.may_admit, target.token_budget

    cdef double order_key(self, const RankView* rank, const Request* request) except? -1.0 nogil:
        with gil:
            return self._number(self._order_key(_request_facts(rank, request), _rank_facts(rank)), "order_key")

    cdef int64_t choose_victim(self, const RankView* rank) except -1 nogil:
        cdef int64_t i, at
        with gil:
            running = [_request_facts(rank, &rank.requests[rank.running[i]]) for i in range(rank.num_running)]
            at = self._whole(self._choose_victim(running, _rank_facts(rank)), "choose_victim")
        # -1 says "an error was raised" here; the last one is no Python index either.
        return at if at >= 0 else -2

    cdef int may_admit(self, const RankView* rank, const Request* request) except -1 nogil:
        with gil:
            answer = self._may_admit(_request_facts(rank, request), _rank_facts(rank))
            if type(answer) is not bool:
                raise EngineError(f"policy {self._name()}: may_admit must be True or False (got {answer!r})")
            return answer

    cdef int64_t token_budget(self, const RankView* rank) except -1 nogil:
        cdef int64_t tokens
        with gil:
            tokens = self._whole(self._token_budget(_rank_facts(rank)), "token_budget")
        return tokens if tokens >= 0 else 0

    cdef const char* reason(self, int decision) except NULL nogil:
        with gil:
            self._reason = str(self.target.reason).encode()
            return self._reason

    cdef double _number(self, object answer, str hook) except? -1.0:
        if isinstance(answer, (int, float)):
            return answer
        raise EngineError(f"policy {self._name()}: {hook} must be a number (got {answer!r})")

    cdef int64_t _whole(self, object answer, str hook) except? -1:
        if isinstance(answer, int) and -2**62 < answer < 2**63:
            return answer
        raise EngineError(f"policy {self._name()}: {hook} must be a whole number (got {answer!r})")

    cdef object _name(self):
        return type(self.target).__name__
