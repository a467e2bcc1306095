"""Two event logs from their first difference on: which lines belong together, and what became of them.

Decides: the order of reading, who is whose partner, and the class of each line. A line of either log looks for the oldest
waiting line of the other one with its key (log_lines.pyx says what a key is); without one it waits itself. At most
`window` places of each log are kept: who would take one more makes the oldest line give up, as missing or extra. The
log that has fewer arrivals beyond the last pair of arrivals is read on, since arrivals are what two runs of one trace
share in any case; then the one that is behind in modelled time. A pair is in order when it stands behind the last pair
in order, in both logs. Memory is fixed. Never decides where the first difference is.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp

from .log_figures cimport is_counted
from .log_lines cimport LINE_ARRIVAL, body_of, kind_of, line_end, scan_head, scan_line, time_of

from .log_lines import KINDS as _KINDS

CLASSES = ("same", "reordered", "moved", "changed", "missing", "extra")
WINDOW_MAX = 1 << 24
A, B, ENDED = 0, 1, 2            # what `run` answers: which log it needs a block of


@cython.final
cdef class Aligner:
    def __cinit__(self, LineRules rules not None, LogFigures a not None, LogFigures b not None,
                  int64_t window=131072):
        cdef int64_t num_buckets = 16
        cdef int64_t i
        cdef int which
        if not 1 <= window <= WINDOW_MAX:
            raise ValueError(f"the window holds from 1 to {WINDOW_MAX} lines (got {window})")
        self._rules = rules
        self._figures_a = a
        self._figures_b = b
        self.window = window
        self._first_class[0] = self._first_class[1] = -1
        while num_buckets < window:
            num_buckets *= 2
        self._bucket_mask = num_buckets - 1
        for which in range(2):
            self._sides[which].spine = -1
            self._sides[which].ring = <Waiting*>calloc(window, sizeof(Waiting))
            self._sides[which].heads = <int32_t*>malloc(num_buckets * sizeof(int32_t))
            self._sides[which].tails = <int32_t*>malloc(num_buckets * sizeof(int32_t))
            if (self._sides[which].ring is NULL or self._sides[which].heads is NULL
                    or self._sides[which].tails is NULL):
                raise MemoryError(f"a window of {window} lines")
            for i in range(num_buckets):
                self._sides[which].heads[i] = self._sides[which].tails[i] = -1

    def __dealloc__(self):
        cdef int which
        for which in range(2):
            free(self._sides[which].ring)
            free(self._sides[which].heads)
            free(self._sides[which].tails)

    def give(self, int which, bytes block):
        """The next whole lines of a log that `run` asked for; None when it has no more."""
        if which not in (A, B):
            raise ValueError(f"there are two logs, 0 and 1 (got {which})")
        cdef Side* side = &self._sides[which]
        if side.at != side.stop or side.ended:
            raise ValueError("this log has lines left, or has ended")
        if block is None:
            side.ended = True
            return
        if not block.endswith(b"\n"):
            raise ValueError("a block holds whole lines")
        side.at = PyBytes_AS_STRING(block)
        side.stop = side.at + len(block)
        if which == 0:
            self._block_a = block
        else:
            self._block_b = block

    def run(self):
        """Go on until a log needs a block (A or B), or both have ended (ENDED)."""
        cdef int wanted
        with nogil:
            wanted = self._run()
        return wanted

    def counts(self):
        """Lines of each kind and class; a pair counts once."""
        cdef int kind, found
        return {
            _KINDS[kind]: {CLASSES[found]: self._counts[kind][found] for found in range(<int>NUM_PAIR_CLASSES)}
            for kind in range(<int>NUM_LINE_KINDS)
        }

    def first_classes(self):
        """The class of the first line of each log; None where it had no line."""
        return tuple(None if found < 0 else CLASSES[found] for found in (self._first_class[0], self._first_class[1]))

    def given_up(self):
        """Lines of each log that left the window without a partner before the logs had ended."""
        return self._sides[0].num_given_up, self._sides[1].num_given_up

    def shifts_ms(self):
        """How much earlier and how much later lines that moved are in the second log, at most."""
        return self._earlier_ms, self._later_ms

    cdef int _run(self) except -1 nogil:
        cdef Side* a = &self._sides[0]
        cdef Side* b = &self._sides[1]
        cdef int64_t ahead
        cdef int which
        while True:
            if a.at == a.stop and not a.ended:
                return 0
            if b.at == b.stop and not b.ended:
                return 1
            if a.ended and b.ended:
                break
            if a.num_waiting == 0 and b.num_waiting == 0 and not a.ended and not b.ended and self._in_step() > 0:
                continue
            if a.ended:
                which = 1
            elif b.ended:
                which = 0
            else:
                self._scan(a, self._figures_a)
                self._scan(b, self._figures_b)
                ahead = (a.num_arrivals - a.settled_arrivals) - (b.num_arrivals - b.settled_arrivals)
                if ahead != 0:
                    which = 0 if ahead < 0 else 1
                elif a.head_ms != b.head_ms:
                    which = 0 if a.head_ms < b.head_ms else 1
                else:
                    which = 0 if a.num_waiting <= b.num_waiting else 1
            self._take(which)
        for which in range(2):
            while self._sides[which].num_waiting > 0:
                self._give_up(which, self._sides[which].first)
        return 2

    cdef int _in_step(self) except -1 nogil:
        """As long as nobody waits, lines that are equal but for their `seq` need no look inside; how many went by."""
        cdef Side* a = &self._sides[0]
        cdef Side* b = &self._sides[1]
        cdef LineFacts facts
        cdef LineKind kind
        cdef const char* end_a
        cdef const char* end_b
        cdef const char* body_a
        cdef const char* body_b
        cdef int num_taken = 0
        while a.at < a.stop and b.at < b.stop:
            end_a, end_b = line_end(a.at, a.stop), line_end(b.at, b.stop)
            body_a, body_b = body_of(a.at, end_a), body_of(b.at, end_b)
            if end_a - body_a != end_b - body_b or memcmp(body_a, body_b, end_a - body_a) != 0:
                break
            kind = kind_of(a.at, end_a)
            if is_counted(kind):
                scan_head(a.at, end_a, &facts)
            self._figures_a.take(kind, &facts)
            self._figures_b.take(kind, &facts)
            if kind == LINE_ARRIVAL:
                a.num_arrivals += 1
                b.num_arrivals += 1
                a.settled_arrivals, b.settled_arrivals = a.num_arrivals, b.num_arrivals
            a.spine, b.spine = a.index, b.index
            self._note(0, a.index, kind, PAIR_SAME)
            self._first_class[1] = PAIR_SAME if b.index == 0 else self._first_class[1]
            a.at, b.at = end_a + 1, end_b + 1
            a.index += 1
            b.index += 1
            a.is_scanned = b.is_scanned = False
            num_taken += 1
        return num_taken

    cdef void _scan(self, Side* side, LogFigures figures) noexcept nogil:
        """Look into the line that comes next, once."""
        if not side.is_scanned:
            side.line_end = line_end(side.at, side.stop)
            scan_line(side.at, side.line_end, &self._rules.ignored, &side.head)
            side.head_ms = time_of(&figures.time, &side.head)
            side.is_scanned = True

    cdef int _take(self, int which) except -1 nogil:
        """The next line of a log finds its partner, or waits."""
        cdef Side* side = &self._sides[which]
        cdef Side* other = &self._sides[1 - which]
        cdef int64_t place
        if which == 0:
            self._scan(side, self._figures_a)
            self._figures_a.take(side.head.kind, &side.head)
        else:
            self._scan(side, self._figures_b)
            self._figures_b.take(side.head.kind, &side.head)
        if side.head.kind == LINE_ARRIVAL:
            side.num_arrivals += 1
        place = self._partner(other, &side.head)
        if place >= 0:
            self._settle(which, &other.ring[place])
            self._unlink(other, place)
        else:
            if side.next - side.first == self.window:
                self._give_up(which, side.first)
                side.num_given_up += 1
            self._wait(which)
        side.at = side.line_end + 1
        side.index += 1
        side.is_scanned = False
        return 0

    cdef int64_t _partner(self, Side* other, const LineFacts* facts) noexcept nogil:
        """Where the oldest waiting line of this key stands in the ring; -1 without one."""
        cdef int32_t place = other.heads[facts.key & <uint64_t>self._bucket_mask]
        while place >= 0 and other.ring[place].key != facts.key:
            place = other.ring[place].behind
        return place

    cdef void _settle(self, int which, Waiting* partner) noexcept nogil:
        """Give a pair its class."""
        cdef Side* side = &self._sides[which]
        cdef Side* other = &self._sides[1 - which]
        cdef bint in_order = side.index > side.spine and partner.index > other.spine
        cdef double shift_ms
        cdef int found
        if in_order:
            side.spine, other.spine = side.index, partner.index
        if side.head.kind == LINE_ARRIVAL:
            side.settled_arrivals = max(side.settled_arrivals, side.num_arrivals)
            other.settled_arrivals = max(other.settled_arrivals, partner.num_arrivals)
        if side.head.content == partner.content:
            found = PAIR_SAME if in_order else PAIR_REORDERED
        elif side.head.timeless == partner.timeless:
            found = PAIR_MOVED
            shift_ms = side.head_ms - partner.t_ms if which == 1 else partner.t_ms - side.head_ms
            self._later_ms = max(self._later_ms, shift_ms)
            self._earlier_ms = max(self._earlier_ms, -shift_ms)
        else:
            found = PAIR_CHANGED
        self._note(which, side.index, side.head.kind if which == 0 else partner.kind, found)
        if partner.index == 0:
            self._first_class[1 - which] = found

    cdef void _wait(self, int which) noexcept nogil:
        cdef Side* side = &self._sides[which]
        cdef int32_t place = <int32_t>(side.next % self.window)
        cdef int32_t bucket = <int32_t>(side.head.key & <uint64_t>self._bucket_mask)
        side.ring[place] = Waiting(
            side.head.key, side.head.content, side.head.timeless, side.index, side.num_arrivals, side.head_ms,
            side.head.kind, bucket, side.tails[bucket], -1,
        )
        if side.tails[bucket] >= 0:
            side.ring[side.tails[bucket]].behind = place
        else:
            side.heads[bucket] = place
        side.tails[bucket] = place
        side.next += 1
        side.num_waiting += 1

    cdef void _give_up(self, int which, int64_t number) noexcept nogil:
        """The oldest line of a log has no partner."""
        cdef Side* side = &self._sides[which]
        cdef int64_t place = number % self.window
        self._note(which, side.ring[place].index, side.ring[place].kind, PAIR_MISSING if which == 0 else PAIR_EXTRA)
        self._unlink(side, place)

    cdef void _unlink(self, Side* side, int64_t place) noexcept nogil:
        """Take a line out of its bucket, and its place out of the ring as soon as no older one is taken."""
        cdef Waiting* line = &side.ring[place]
        if line.before >= 0:
            side.ring[line.before].behind = line.behind
        else:
            side.heads[line.bucket] = line.behind
        if line.behind >= 0:
            side.ring[line.behind].before = line.before
        else:
            side.tails[line.bucket] = line.before
        line.bucket = -1
        side.num_waiting -= 1
        while side.first < side.next and side.ring[side.first % self.window].bucket < 0:
            side.first += 1

    cdef void _note(self, int which, int64_t index, LineKind kind, int found) noexcept nogil:
        self._counts[<int>kind][found] += 1
        if index == 0:
            self._first_class[which] = found
