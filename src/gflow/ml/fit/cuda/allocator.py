"""Model of PyTorch's CUDA caching allocator: the bytes that a run reserves on the GPU, not only requests.

The rules are those of c10/cuda/CUDACachingAllocator, with its default settings:

* a request is rounded up to 512 bytes;
* up to 1 MiB comes from segments of 2 MiB that are kept apart (the small pool); below 10 MiB from
  segments of 20 MiB; a larger request gets a segment of its own, rounded up to 2 MiB;
* best fit: the smallest free block that is large enough is taken; the remainder is split off if it is large
  enough (512 bytes in the small pool, more than 1 MiB in the large one), otherwise it stays with the block
  and counts as allocated;
* a freed block is merged with its free neighbours of the same segment;
* when cudaMalloc of a segment fails, all completely free segments are released, and it is retried once.
"""

from __future__ import annotations

from bisect import bisect_left, insort

MIB = 1 << 20
ROUND = 512
SMALL_REQUEST = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_REQUEST = 10 * MIB
LARGE_SEGMENT = 20 * MIB
ROUND_LARGE = 2 * MIB


class OutOfMemory(Exception):
    """The GPU cannot satisfy a request, even after all free segments were released."""

    def __init__(self, asked: int, allocated: int, reserved: int) -> None:
        super().__init__(f"{asked} bytes asked, {allocated} allocated, {reserved} reserved")
        self.asked = asked
        self.allocated = allocated
        self.reserved = reserved


class _Block:
    __slots__ = ("address", "after", "before", "is_free", "is_small", "size")

    def __init__(self, address: int, size: int, is_small: bool) -> None:
        self.address = address
        self.size = size
        self.is_small = is_small
        self.is_free = False
        self.before: _Block | None = None
        self.after: _Block | None = None


class Allocator:
    """The allocator of one GPU. `cap`: bytes that it may reserve; None: unlimited."""

    def __init__(self, cap: int | None = None) -> None:
        self.cap = cap
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        # How often free segments had to be released: each time costs a synchronisation.
        self.retries = 0
        self._next_address = 0
        # Free blocks of the large and the small pool, sorted by size and address.
        self._free: tuple[list[tuple[int, int, _Block]], list[tuple[int, int, _Block]]] = ([], [])

    def allocate(self, asked: int) -> _Block:
        """Allocate a block of at least `asked` bytes. Release it with `free`."""
        size = max(ROUND, -(-asked // ROUND) * ROUND)
        is_small = size <= SMALL_REQUEST
        block = self._take(size, is_small) or self._new_segment(size, is_small)
        left = block.size - size
        if left >= ROUND if is_small else left > SMALL_REQUEST:
            self._split(block, size)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: _Block) -> None:
        self.allocated -= block.size
        before, after = block.before, block.after
        if before is not None and before.is_free:
            self._remove_free(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.is_free:
            self._remove_free(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        self._insert_free(block)

    def _take(self, size: int, is_small: bool) -> _Block | None:
        pool = self._free[is_small]
        index = bisect_left(pool, (size, -1))
        if index == len(pool):
            return None
        block = pool.pop(index)[2]
        block.is_free = False
        return block

    def _new_segment(self, size: int, is_small: bool) -> _Block:
        """Reserve a new segment on the GPU."""
        wanted = segment_size(size)
        if self.cap is not None and self.reserved + wanted > self.cap:
            self._release_segments()
            self.retries += 1
            if self.reserved + wanted > self.cap:
                raise OutOfMemory(size, self.allocated, self.reserved)
        block = _Block(self._next_address, wanted, is_small)
        self._next_address += wanted
        self.reserved += wanted
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return block

    def _release_segments(self) -> None:
        """Release all segments that are completely free."""
        for pool in self._free:
            kept = []
            for entry in pool:
                block = entry[2]
                if block.before is None and block.after is None:
                    self.reserved -= block.size
                else:
                    kept.append(entry)
            pool[:] = kept

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(block.address + size, block.size - size, block.is_small)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size = size
        self._insert_free(rest)

    def _insert_free(self, block: _Block) -> None:
        block.is_free = True
        insort(self._free[block.is_small], (block.size, block.address, block))

    def _remove_free(self, block: _Block) -> None:
        pool = self._free[block.is_small]
        del pool[bisect_left(pool, (block.size, block.address))]


def segment_size(size: int) -> int:
    """Return the segment size that is reserved for a block of this size."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < LARGE_REQUEST:
        return LARGE_SEGMENT
    return -(-size // ROUND_LARGE) * ROUND_LARGE
