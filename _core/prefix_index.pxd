# Identities of full blocks, kept as a trie over trace hash ids; no prompt is ever materialised.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t


cdef enum Found:            # how a node is reached by (parent, key)
    PRIVATE_NODE = 0        # not at all: it belongs to one request
    IN_TABLE = 1
    AS_CHILD = 2            # as the one that its parent names


cdef struct Node:
    uint64_t key            # trace hash id of this step of the trie
    int32_t parent          # node, NONE at the root
    int32_t holders         # children + live requests + cached identities; 0 = forgotten
    int32_t next            # behind it in its chain of `table`, or in the list of unused nodes
    int32_t child           # one of its children, so that a path without forks needs no table; NONE = none is named
    int32_t num_in_table    # children beside that one
    uint8_t found           # Found
    uint8_t doubled         # the pool has a second copy of one of its blocks, or its identities are places for such copies
    uint16_t watched        # waiting requests whose order depends on what is cached of it


cdef class PrefixIndex:
    # Geometry. A trace block of `trace_block_size` tokens owns the engine blocks whose last token lies in
    # it; they are cut into `parts` nodes of at most `stride` blocks each.
    cdef readonly int64_t block_size           # [tokens]
    cdef readonly int64_t trace_block_size     # [tokens]
    cdef readonly int32_t stride               # identities per node, a power of two <= 64
    cdef readonly int32_t shift                # log2(stride)
    cdef readonly int64_t parts                # nodes per trace block
    cdef bint aligned                          # a trace block is `stride` engine blocks: block k is part of node k >> shift
    cdef public bint knows_outputs             # hash ids go on behind the prompt, one an engine block: generated blocks are shared
    cdef readonly int32_t num_nodes            # in use
    cdef Node* nodes                           # (node_capacity,), owned
    cdef int32_t node_capacity
    cdef int32_t node_top                      # nodes ever handed out
    cdef int32_t free_node
    cdef int32_t* heads                        # (node_capacity * stride,): primary copy of an identity, NONE = not cached
    cdef uint64_t* hashes                      # (node_capacity * stride,): chain hash, 0 = not computed; NULL unless wanted
    cdef int32_t* table                        # (table_mask + 1,): chains of nodes by their (parent, key), NONE = empty
    cdef int64_t table_mask
    cdef int64_t table_used

    cdef int64_t first_block(self, int64_t depth) noexcept nogil
    cdef int64_t node_end(self, int64_t block) noexcept nogil
    cdef int32_t child(self, int32_t parent, uint64_t key) except -1 nogil
    cdef int32_t private_node(self, int32_t parent) except -1 nogil
    cdef void hold(self, int32_t node) noexcept nogil
    cdef void drop(self, int32_t node) noexcept nogil
    cdef int track_hashes(self) except -1
    cdef int32_t _in_table(self, int32_t parent, uint64_t key) noexcept nogil
    cdef int32_t _new_node(self, int32_t parent, uint64_t key, uint8_t found) except -1 nogil
    cdef int _grow_table(self) except -1 nogil
    cdef void _unmap(self, int32_t node) noexcept nogil
    cdef bint _is_reachable(self, int32_t node) noexcept nogil
