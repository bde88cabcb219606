"""Model of PyTorch's CUDA caching allocator: the bytes that a run reserves on the GPU, not only requests.

The rules are those of c10/cuda/CUDACachingAllocator, with its default settings:

* a request is rounded up to 512 bytes;
* up to 1 MiB comes from segments of 2 MiB that are kept apart (the small pool); below 10 MiB from
  segments of 20 MiB; a larger request gets a segment of its own, rounded up to 2 MiB;
* best fit: the smallest free block that is large enough is taken; the remainder is split off if it is large
  enough (512 bytes in the small pool, more than 1 MiB in the large one), otherwise it stays with the block
  and counts as allocated;
* of free blocks of one size, the one with the lowest address is taken (`SegmentAddresses`);
* a freed block is merged with its free neighbours of the same segment;
* when cudaMalloc of a segment fails, all completely free segments are released, and it is retried once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

MIB = 1 << 20
ROUND = 512
SMALL_REQUEST = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_REQUEST = 10 * MIB
LARGE_SEGMENT = 20 * MIB
ROUND_LARGE = 2 * MIB
ADDRESS_RANGE = 32 * MIB


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


class SegmentAddresses:
    """The addresses that NVIDIA's driver gives to segments, as 60 recorded runs on an H200 show them.

    A segment gets ranges of 32 MiB below all earlier ones. What is left of the last range goes to segments
    that fit into it: of all such holes, the one with the lowest address is taken.
    """

    def __init__(self) -> None:
        self._lowest = 0
        # Addresses of the holes of each size, as heaps.
        self._holes: dict[int, list[int]] = {}

    def take(self, size: int) -> int:
        found = min(
            ((heap[0], hole) for hole, heap in self._holes.items() if hole >= size and heap), default=None
        )
        if found is None:
            length = -(-size // ADDRESS_RANGE) * ADDRESS_RANGE
            self._lowest -= length
            address = self._lowest
        else:
            address, length = found
            heappop(self._holes[length])
        if length > size:
            self.give_back(address + size, length - size)
        return address

    def give_back(self, address: int, size: int) -> None:
        heappush(self._holes.setdefault(size, []), address)


class Allocator:
    """The allocator of one GPU. `cap`: bytes that it may reserve; None: unlimited."""

    # A remainder of at least so many bytes is split off a block, in the large pool and in the small one.
    least_rest = (SMALL_REQUEST + 1, ROUND)

    def __init__(self, cap: int | None = None) -> None:
        self.cap = cap
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        # How often free segments had to be released: each time costs a synchronisation.
        self.retries = 0
        self._addresses = SegmentAddresses()
        # Free blocks of the large and the small pool, sorted by size and address.
        self._free: tuple[list[tuple[int, int, _Block]], list[tuple[int, int, _Block]]] = ([], [])

    def allocate(self, asked: int) -> _Block:
        """Allocate a block of at least `asked` bytes. Release it with `free`."""
        size = max(ROUND, -(-asked // ROUND) * ROUND)
        is_small = size <= SMALL_REQUEST
        block = self._take(size, is_small) or self._new_segment(size, is_small)
        left = block.size - size
        if left >= self.least_rest[is_small]:
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
        index = bisect_left(pool, (size,))
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
        block = _Block(self._addresses.take(wanted), wanted, is_small)
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
                    self._addresses.give_back(block.address, block.size)
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


class ExpandableAllocator(Allocator):
    """The allocator with expandable_segments:True: one segment per pool, which grows by pages at its end.

    A page has 2 MiB in the small pool and 20 MiB in the large one. Blocks are split to 512 bytes in both. A
    block that is large enough is taken before the last one, which can grow. When the GPU is full, all pages
    without a block are released.
    """

    least_rest = (ROUND, ROUND)

    def __init__(self, cap: int | None = None) -> None:
        super().__init__(cap)
        self._last: dict[bool, _Block] = {}

    def _take(self, size: int, is_small: bool) -> _Block | None:
        pool = self._free[is_small]
        index = bisect_left(pool, (size,))
        if index + 1 < len(pool) and pool[index][2] is self._last.get(is_small):
            index += 1
        if index == len(pool):
            return None
        block = pool.pop(index)[2]
        block.is_free = False
        return block

    def _new_segment(self, size: int, is_small: bool) -> _Block:
        """Map more pages at the end of the segment; the last block is extended if it is free."""
        page = SMALL_SEGMENT if is_small else LARGE_SEGMENT
        if self.cap is not None and self.reserved + self._grown(size, is_small, page) > self.cap:
            self._release_segments()
            self.retries += 1
            if self.reserved + self._grown(size, is_small, page) > self.cap:
                raise OutOfMemory(size, self.allocated, self.reserved)
        grown, last = self._grown(size, is_small, page), self._last.get(is_small)
        self.reserved += grown
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        if last is not None and last.is_free:
            self._remove_free(last)
            last.is_free = False
            last.size += grown
            return last
        # Each pool has its own addresses, which begin at a page.
        start = last.address + last.size if last is not None else (0 if is_small else LARGE_SEGMENT << 40)
        block = _Block(start, grown, is_small)
        block.before = last
        if last is not None:
            last.after = block
        self._last[is_small] = block
        return block

    def _grown(self, size: int, is_small: bool, page: int) -> int:
        last = self._last.get(is_small)
        left = last.size if last is not None and last.is_free else 0
        return -(-(size - left) // page) * page

    def _release_segments(self) -> None:
        """Release the complete pages of free blocks. Their addresses are not used again."""
        for is_small, page in ((False, LARGE_SEGMENT), (True, SMALL_SEGMENT)):
            for block in [entry[2] for entry in self._free[is_small]]:
                begin = -(-block.address // page) * page
                end = (block.address + block.size) // page * page
                if end <= begin:
                    continue
                self.reserved -= end - begin
                self._remove_free(block)
                block.is_free = False
                hole = block
                if block.address < begin:
                    hole = self._cut(block, begin - block.address)
                    self._insert_free(block)
                if hole.address + hole.size > end:
                    self._insert_free(self._cut(hole, end - hole.address))

    def _split(self, block: _Block, size: int) -> None:
        self._insert_free(self._cut(block, size))

    def _cut(self, block: _Block, size: int) -> _Block:
        """Shorten a block. Return the rest of it as a block of its own."""
        rest = _Block(block.address + size, block.size - size, block.is_small)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        else:
            self._last[block.is_small] = rest
        block.after, block.size = rest, size
        return rest

    def _insert_free(self, block: _Block) -> None:
        if block.after is None:
            self._last[block.is_small] = block
        super()._insert_free(block)


def segment_size(size: int) -> int:
    """Return the segment size that is reserved for a block of this size."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < LARGE_REQUEST:
        return LARGE_SEGMENT
    return -(-size // ROUND_LARGE) * ROUND_LARGE
