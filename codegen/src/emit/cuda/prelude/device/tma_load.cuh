// Boxes of a tensor to shared memory, by the copy engine. `full` counts the bytes of the whole box, also those outside of the
// tensor, which become zero. The destination is aligned to 128 bytes, with 128-byte swizzle to 1024. One thread asks.
DEV void tma_load_2d(smem_ptr dst, const TensorMap* map, smem_ptr full, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4}], [%2];" :: "r"(dst), "l"(map), "r"(full), "r"(x), "r"(y) : "memory");
}
DEV void tma_load_3d(smem_ptr dst, const TensorMap* map, smem_ptr full, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" :: "r"(dst), "l"(map), "r"(full), "r"(x), "r"(y), "r"(z) : "memory");
}
DEV void tma_load_4d(smem_ptr dst, const TensorMap* map, smem_ptr full, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];" :: "r"(dst), "l"(map), "r"(full), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
// How long the lines stay in the L2.
DEV u64 l2_evict_first() { u64 p; asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p)); return p; }
DEV u64 l2_evict_last() { u64 p; asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p)); return p; }
DEV void tma_load_2d_hint(smem_ptr dst, const TensorMap* map, smem_ptr full, int x, int y, u64 policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4}], [%2], %5;" :: "r"(dst), "l"(map), "r"(full), "r"(x), "r"(y), "l"(policy) : "memory");
}
DEV void tma_load_3d_hint(smem_ptr dst, const TensorMap* map, smem_ptr full, int x, int y, int z, u64 policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" :: "r"(dst), "l"(map), "r"(full), "r"(x), "r"(y), "r"(z), "l"(policy) : "memory");
}
// To the same place in all blocks of the cluster whose bits are set; each counts the bytes on its own barrier.
DEV void tma_load_2d_multicast(smem_ptr dst, const TensorMap* map, smem_ptr full, int x, int y, u16 ranks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" :: "r"(dst), "l"(map), "r"(full), "r"(x), "r"(y), "h"(ranks) : "memory");
}
DEV void tma_load_3d_multicast(smem_ptr dst, const TensorMap* map, smem_ptr full, int x, int y, int z, u16 ranks) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" :: "r"(dst), "l"(map), "r"(full), "r"(x), "r"(y), "r"(z), "h"(ranks) : "memory");
}
DEV void tma_load_4d_multicast(smem_ptr dst, const TensorMap* map, smem_ptr full, int x, int y, int z, int w, u16 ranks) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" :: "r"(dst), "l"(map), "r"(full), "r"(x), "r"(y), "r"(z), "r"(w), "h"(ranks) : "memory");
}
