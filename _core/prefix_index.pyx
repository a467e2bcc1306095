"""Identity of full blocks: a trie over the trace's hash ids.

Two prompts share engine block k exactly when their tokens agree up to the end of k. A token at position
p stands for hash_ids[p // trace_block_size], so they agree there exactly when their leading hash ids up to
the one that holds the block's last token are equal. One trie node per trace block (or per 64 engine blocks
of it) therefore stands for all engine blocks that end in it, whatever the two block sizes are; identity
number = node * stride + index. Equality is exact: nodes are interned by (parent, 64-bit id), nothing is hashed away. A
node names one of its children, and only its further ones are in a table.

Blocks with generated tokens get identities in nodes private to their request; where the caller knows what will be
generated (`knows_outputs`), they go on along the trie by its ids. A node is forgotten when no
child, no live request and no cached copy refers to it, which keeps memory flat however long the trace is.

Never decides what is cached: `heads` belongs to the block pool.
"""
cimport cython
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from .types cimport NONE


cdef inline uint64_t _mix(int32_t parent, uint64_t key) noexcept nogil:
    """Spread (parent, key) over 64 bits: multiply-xorshift rounds."""
    cdef uint64_t h = key * <uint64_t>0x9E3779B97F4A7C15 + <uint64_t>(parent + 2) * <uint64_t>0xC2B2AE3D27D4EB4F
    h ^= h >> 29
    h *= <uint64_t>0xBF58476D1CE4E5B9
    return h ^ (h >> 32)


@cython.final
cdef class PrefixIndex:
    def __cinit__(self, int64_t block_size, int64_t trace_block_size):
        if block_size < 1 or trace_block_size < 1:
            raise ValueError("block sizes must be positive")
        cdef int64_t most = (trace_block_size + block_size - 1) // block_size
        self.block_size = block_size
        self.trace_block_size = trace_block_size
        self.stride = 1
        self.shift = 0
        while self.stride < most and self.stride < 64:
            self.stride *= 2
            self.shift += 1
        self.parts = (most + self.stride - 1) // self.stride
        self.aligned = self.stride * block_size == trace_block_size
        self.free_node = NONE
        self.table_mask = 1023
        self.table = <int32_t*>malloc((self.table_mask + 1) * sizeof(int32_t))
        if self.table is NULL:
            raise MemoryError("prefix index")
        cdef int64_t i
        for i in range(self.table_mask + 1):
            self.table[i] = NONE

    def __dealloc__(self):
        free(self.nodes)
        free(self.heads)
        free(self.hashes)
        free(self.table)

    cdef int64_t first_block(self, int64_t depth) noexcept nogil:
        """First engine block owned by the node at `depth` of a path; the next depth's one ends it."""
        cdef int64_t trace_block, begin, end
        if self.aligned:
            return depth << self.shift
        trace_block = depth // self.parts
        begin = (trace_block * self.trace_block_size) // self.block_size
        if self.parts == 1:
            return begin
        end = ((trace_block + 1) * self.trace_block_size) // self.block_size
        begin += (depth - trace_block * self.parts) * self.stride
        return begin if begin < end else end

    cdef int64_t node_end(self, int64_t block) noexcept nogil:
        """First block behind those of a node that holds `block`; with several parts a trace block, the one behind it."""
        cdef int64_t trace_block
        if self.aligned:
            return ((block >> self.shift) + 1) << self.shift
        if self.parts > 1:
            return block + 1
        trace_block = ((block + 1) * self.block_size - 1) // self.trace_block_size
        return ((trace_block + 1) * self.trace_block_size) // self.block_size

    cdef int32_t child(self, int32_t parent, uint64_t key) except -1 nogil:
        """The node reached from `parent` (NONE = root) by `key`, made if missing. Holders are unchanged."""
        cdef int32_t node
        cdef int32_t* head
        if parent != NONE:
            node = self.nodes[parent].child
            if node != NONE and self.nodes[node].key == key:
                return node
            if self.nodes[parent].num_in_table > 0:
                node = self._in_table(parent, key)
                if node != NONE:
                    return node
            if self.nodes[parent].child == NONE:
                node = self._new_node(parent, key, AS_CHILD)
                self.nodes[parent].child = node
                return node
        else:
            node = self._in_table(parent, key)
            if node != NONE:
                return node
        node = self._new_node(parent, key, IN_TABLE)
        if self.table_used > self.table_mask:
            self._grow_table()
        head = &self.table[_mix(parent, key) & <uint64_t>self.table_mask]
        self.nodes[node].next = head[0]
        head[0] = node
        self.table_used += 1
        if parent != NONE:
            self.nodes[parent].num_in_table += 1
        return node

    cdef int32_t _in_table(self, int32_t parent, uint64_t key) noexcept nogil:
        cdef int32_t node = self.table[_mix(parent, key) & <uint64_t>self.table_mask]
        while node != NONE and (self.nodes[node].key != key or self.nodes[node].parent != parent):
            node = self.nodes[node].next
        return node

    cdef int32_t private_node(self, int32_t parent) except -1 nogil:
        """A node that only its maker can reach, for blocks with generated tokens."""
        return self._new_node(parent, 0, PRIVATE_NODE)

    cdef void hold(self, int32_t node) noexcept nogil:
        self.nodes[node].holders += 1

    cdef void drop(self, int32_t node) noexcept nogil:
        """Give one hold back; nodes without holders are forgotten, upwards."""
        cdef int32_t parent
        while node != NONE:
            self.nodes[node].holders -= 1
            if self.nodes[node].holders > 0:
                return
            parent = self.nodes[node].parent
            if self.nodes[node].found == AS_CHILD:
                self.nodes[parent].child = NONE
            elif self.nodes[node].found == IN_TABLE:
                self._unmap(node)
                if parent != NONE:
                    self.nodes[parent].num_in_table -= 1
            self.nodes[node].watched = 0
            self.nodes[node].next = self.free_node
            self.free_node = node
            self.num_nodes -= 1
            node = parent

    cdef int track_hashes(self) except -1:
        """Keep a chain hash per identity from now on; call before the first node is made."""
        self.hashes = <uint64_t*>calloc(max(1, self.node_capacity) * self.stride, sizeof(uint64_t))
        if self.hashes is NULL:
            raise MemoryError("prefix index hashes")
        return 0

    cdef int32_t _new_node(self, int32_t parent, uint64_t key, uint8_t found) except -1 nogil:
        cdef int32_t node = self.free_node
        cdef int64_t capacity
        cdef Node* nodes
        cdef int32_t* heads
        cdef uint64_t* hashes
        if node != NONE:
            self.free_node = self.nodes[node].next
        else:
            if self.node_top == self.node_capacity:
                capacity = max(256, <int64_t>self.node_capacity * 2)
                if capacity * self.stride > 0x7fffffff:
                    with gil:
                        raise MemoryError("more than 2**31 block identities alive")
                nodes = <Node*>realloc(self.nodes, capacity * sizeof(Node))
                if nodes is not NULL:
                    self.nodes = nodes
                heads = <int32_t*>realloc(self.heads, capacity * self.stride * sizeof(int32_t))
                if heads is not NULL:
                    self.heads = heads
                if self.hashes is not NULL:
                    hashes = <uint64_t*>realloc(self.hashes, capacity * self.stride * sizeof(uint64_t))
                    if hashes is not NULL:
                        self.hashes = hashes
                    else:
                        heads = NULL
                if nodes is NULL or heads is NULL:
                    with gil:
                        raise MemoryError(f"prefix index of {capacity} nodes")
                self.node_capacity = <int32_t>capacity
            node = self.node_top
            self.node_top += 1
        self.nodes[node] = Node(key, parent, 0, NONE, NONE, 0, found, 0, 0)
        if self.stride == 1:
            self.heads[node] = NONE
        else:
            memset(&self.heads[<int64_t>node << self.shift], 0xff, self.stride * sizeof(int32_t))     # NONE
        if self.hashes is not NULL:
            memset(&self.hashes[<int64_t>node << self.shift], 0, self.stride * sizeof(uint64_t))
        if parent != NONE:
            self.nodes[parent].holders += 1
        self.num_nodes += 1
        return node

    cdef int _grow_table(self) except -1 nogil:
        cdef int64_t mask = self.table_mask * 2 + 1
        cdef int64_t i, at
        cdef int32_t node, next_node
        cdef int32_t* grown = <int32_t*>malloc((mask + 1) * sizeof(int32_t))
        if grown is NULL:
            with gil:
                raise MemoryError("prefix index table")
        for i in range(mask + 1):
            grown[i] = NONE
        for i in range(self.table_mask + 1):
            node = self.table[i]
            while node != NONE:
                next_node = self.nodes[node].next
                at = <int64_t>(_mix(self.nodes[node].parent, self.nodes[node].key) & <uint64_t>mask)
                self.nodes[node].next = grown[at]
                grown[at] = node
                node = next_node
        free(self.table)
        self.table = grown
        self.table_mask = mask
        return 0

    cdef void _unmap(self, int32_t node) noexcept nogil:
        """Take a node out of its chain."""
        cdef int32_t* link = &self.table[
            _mix(self.nodes[node].parent, self.nodes[node].key) & <uint64_t>self.table_mask
        ]
        while link[0] != node:
            link = &self.nodes[link[0]].next
        link[0] = self.nodes[node].next
        self.table_used -= 1

    def path(self, hash_ids, int64_t num_blocks):
        """Test door: nodes that hold the first `num_blocks` full blocks of a prompt; each is held once.

        Returns:
            list of node numbers, one per depth; give the last one back with `forget`.
        """
        nodes = []
        cdef int32_t node = NONE
        cdef int64_t depth = 0
        while self.first_block(depth) < num_blocks:
            node = self.child(node, hash_ids[depth // self.parts])
            nodes.append(node)
            depth += 1
        if nodes:
            self.hold(node)
        return nodes

    def forget(self, int32_t node):
        """Test door: give back one hold."""
        self.drop(node)

    def num_holds(self):
        """Test door: holds that are neither children nor cached identities, those of requests. O(nodes)."""
        cdef int32_t node
        cdef int64_t i
        cdef int64_t holds = 0
        free_nodes = self._free_nodes()
        for node in range(self.node_top):
            if node not in free_nodes:
                holds += self.nodes[node].holders - (self.nodes[node].parent != NONE)
                for i in range(self.stride):
                    holds -= self.heads[(<int64_t>node << self.shift) + i] != NONE
        return holds

    def _free_nodes(self):
        cdef int32_t node = self.free_node
        free_nodes = set()
        while node != NONE:
            free_nodes.add(node)
            node = self.nodes[node].next
        return free_nodes

    cdef bint _is_reachable(self, int32_t node) noexcept nogil:
        if self.nodes[node].found == AS_CHILD:
            return self.nodes[self.nodes[node].parent].child == node
        return self._in_table(self.nodes[node].parent, self.nodes[node].key) == node

    def check(self):
        """Walk everything and compare the counts; AssertionError on the first contradiction. O(nodes)."""
        cdef int32_t node, parent
        cdef int64_t i
        cdef int64_t in_table = 0
        free_nodes = self._free_nodes()
        assert len(free_nodes) + self.num_nodes == self.node_top, "nodes lost"
        children = [0] * self.node_top
        others = [0] * self.node_top
        for node in range(self.node_top):
            if node in free_nodes:
                continue
            parent = self.nodes[node].parent
            assert parent == NONE or parent not in free_nodes, "child of a forgotten node"
            if parent != NONE:
                children[parent] += 1
            if self.nodes[node].found == IN_TABLE:
                in_table += 1
                if parent != NONE:
                    others[parent] += 1
            if self.nodes[node].found != PRIVATE_NODE:
                assert self._is_reachable(node), "node not reachable"
        for node in range(self.node_top):
            if node in free_nodes:
                continue
            cached = sum(1 for i in range(self.stride) if self.heads[(<int64_t>node << self.shift) + i] != NONE)
            assert self.nodes[node].holders >= children[node] + cached, "holders below children and cached identities"
            assert self.nodes[node].num_in_table == others[node], "children in the table"
            assert self.nodes[node].child == NONE or self.nodes[self.nodes[node].child].parent == node, "named child"
        assert in_table == self.table_used, "table count"
