// Products of four warps. The instructions themselves stand with the kernel, one a shape.
//
// Descriptor of an operand with k in its rows: rows of 128 bytes, 128-byte swizzle, 1024-byte aligned. A step along k inside of
// the row adds its bytes / 16, a step by rows adds rows * 8.
DEV u64 wgmma_tile(smem_ptr tile) { return (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (u64)1 << 16 | (u64)((tile & 0x3ffff) >> 4); }
// The same for an operand of 16-bit values with k across its rows: boxes of 64 columns, `box_bytes` apart. A step along k adds
// rows * 8.
DEV u64 wgmma_tile_across(smem_ptr tile, u32 box_bytes) {
    return (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (u64)(box_bytes >> 4) << 16 | (u64)((tile & 0x3ffff) >> 4);
}
// Before the first product, and after registers of one were touched.
DEV void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the N newest groups are done: their registers may be used and their operands overwritten.
template <int N> DEV void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
// Keeps ordinary uses of an accumulator out of the time between wgmma_begin and the wait: before the one, after the other.
template <int N> DEV void wgmma_pin(float (&d)[N]) {
    #pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}
