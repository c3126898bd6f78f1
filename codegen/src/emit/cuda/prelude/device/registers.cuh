// Registers that warps give back to the block or take from it, in multiples of 8 from 24 to 256, for whole warpgroups.
template <int N> DEV void registers_grow() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> DEV void registers_shrink() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }
