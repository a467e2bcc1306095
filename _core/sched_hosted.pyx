"""What a rank knows of a request with host memory: the identities of its blocks there, and whom it waits for.

A prompt enters the index of the tier when it is first looked up or stored; from then on each of its complete blocks goes
by the entry of the tier, and ties are broken by its number, which all ranks that share the tier count alike.

Decides: the identity of a block. Never decides what is stored or loaded, nor who waits (sched_offload).
Source: hand-off and offload specification, sections 9 to 11.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, realloc

from .request_table cimport Request
from .types cimport NONE


cdef class HostedScheduler(ReadingScheduler):
    def __dealloc__(self):
        free(self.identities)

    cdef int note_request(self, int32_t slot) except -1 nogil:
        cdef Hosted* grown
        cdef int32_t i
        cdef int64_t capacity
        if not self.has_tier:
            return 0
        self.stalled = False
        if slot >= self.hosted_capacity:
            capacity = max(64, 2 * <int64_t>slot)
            grown = <Hosted*>realloc(self.hosted, capacity * sizeof(Hosted))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{capacity} requests with a host tier")
            self.hosted = grown
            for i in range(self.hosted_capacity, <int32_t>capacity):
                grown[i].path = NULL
                grown[i].reads = NULL
                grown[i].reads_capacity = 0
            self.hosted_capacity = <int32_t>capacity
        self.hosted[slot].path_length = self.hosted[slot].cursor = self.hosted[slot].base_blocks = 0
        self.hosted[slot].num_keys = self.requests.slots[slot].n_in // self.block_size
        self.hosted[slot].store = self.hosted[slot].load = self.hosted[slot].awaits = self.hosted[slot].asked_at = NONE
        self.hosted[slot].loaded = False
        return 0

    cdef int _keys(self, Hosted* hosted, int64_t first, int64_t end) except -1 nogil:
        """Identities of its blocks first..end in `identities`."""
        cdef int64_t i
        cdef int32_t* grown
        if end - first > self.identities_capacity:
            grown = <int32_t*>realloc(self.identities, 2 * (end - first) * sizeof(int32_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"identities of {end - first} blocks")
            self.identities = grown
            self.identities_capacity = 2 * (end - first)
        for i in range(first, end):
            self.identities[i - first] = self._key_of(hosted, i)
        return 0

    cdef int32_t _key_of(self, Hosted* hosted, int64_t block) noexcept nogil:
        """Identity of a complete prompt block in the tier; as `identity_of`."""
        cdef int64_t depth = (((block + 1) * self.block_size - 1) // self.keys.trace_block_size) * self.keys.parts
        while self.keys.parts > 1 and depth + 1 < hosted.path_length and self.keys.first_block(depth + 1) <= block:
            depth += 1
        return (hosted.path[depth] << self.keys.shift) + <int32_t>(block - self.keys.first_block(depth))

    cdef int _number_blocks(self, int32_t slot) except -1:
        """Enter the prompt into the tier's index, with the numbers of its blocks; once a request."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Hosted* hosted = &self.hosted[slot]
        cdef PrefixIndex keys = self.tier.keys
        cdef int64_t depths, depth, block
        cdef int32_t node = NONE
        cdef int32_t identity
        cdef uint64_t number = 0
        if hosted.path_length > 0 or hosted.num_keys == 0:
            return 0
        depths = ((hosted.num_keys * self.block_size - 1) // keys.trace_block_size + 1) * keys.parts
        while depths > 1 and keys.first_block(depths - 1) >= hosted.num_keys:
            depths -= 1
        free(hosted.path)
        hosted.path = <int32_t*>malloc(depths * sizeof(int32_t))
        if hosted.path is NULL:
            raise MemoryError(f"path of {depths} nodes")
        for depth in range(depths):
            node = keys.child(node, request.hash_ids[depth // keys.parts])
            hosted.path[depth] = node
        hosted.path_length = depths
        keys.hold(node)
        for block in range(hosted.num_keys):
            identity = self._key_of(hosted, block)
            if keys.hashes[identity] == 0:
                keys.hashes[identity] = self.chain_hash(number, block, self.local_hash(request, block))
            number = keys.hashes[identity]
        return 0

    cdef void _touch_all(self, Hosted* hosted) noexcept nogil:
        """All its blocks were asked for, the first of them last."""
        cdef int64_t i
        for i in range(hosted.num_keys - 1, -1, -1):
            self.tier.touch(self._key_of(hosted, i))

    cdef int give_up(self, int32_t slot) except -1 nogil:
        cdef Hosted* hosted
        ReadingScheduler.give_up(self, slot)
        if self.has_tier:
            hosted = &self.hosted[slot]
            self.num_awaiting -= hosted.awaits != NONE
            hosted.awaits = NONE
            if hosted.path_length > 0:
                self.tier.keys.drop(hosted.path[hosted.path_length - 1])
                hosted.path_length = 0
        return 0

    cdef void _await_no_more(self, int64_t load) noexcept nogil:
        """A load is over: those that were set aside for it look again."""
        cdef int64_t i
        if self.num_awaiting == 0:
            return
        for i in range(self.num_aside):
            if self.hosted[self.aside[i]].awaits == load:
                self.hosted[self.aside[i]].awaits = NONE
                self.num_awaiting -= 1
