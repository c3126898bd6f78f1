// Boxes of shared memory to a tensor, by the copy engine; what lies outside of the tensor is left out. The source is aligned
// to 128 bytes. What threads wrote needs async_proxy_fence by each of them, then a barrier, before one thread asks.
DEV void tma_store_2d(const TensorMap* map, smem_ptr src, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
        :: "l"(map), "r"(src), "r"(x), "r"(y) : "memory");
}
DEV void tma_store_3d(const TensorMap* map, smem_ptr src, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
        :: "l"(map), "r"(src), "r"(x), "r"(y), "r"(z) : "memory");
}
DEV void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All but the N newest groups have read their source, or are in memory.
template <int N> DEV void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory"); }
template <int N> DEV void tma_store_wait() { asm volatile("cp.async.bulk.wait_group %0;" :: "n"(N) : "memory"); }
