// Barriers of some of a block's warps. Barrier 0 is that of __syncthreads; `threads` is a multiple of 32.
DEV void named_barrier_sync(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
// Counts as present without waiting for the others.
DEV void named_barrier_arrive(u32 id, u32 threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
