// Blocks that run together. All threads of all blocks arrive and wait in turn. A block stays until no other one can still
// write to it or signal it.
DEV u32 cluster_rank() { u32 x; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(x)); return x; }
// What this thread did before is visible to all after their waits.
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Orders no memory but the set-up of barriers before mbar_init_fence, and costs less.
DEV void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The same place in the shared memory of the block with this rank.
DEV smem_ptr cluster_address(smem_ptr p, u32 rank) {
    u32 x; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(p), "r"(rank)); return x;
}
// Sends 16 bytes to another block and counts them on an mbarrier there; both addresses are from cluster_address. Does not wait.
DEV void cluster_send4(smem_ptr to, smem_ptr bar, float4 v) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];"
        :: "r"(to), "r"(bar), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
