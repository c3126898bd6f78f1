// Barriers in shared memory: a phase is over when all its arrivals and all bytes it expects are in. Waits name a phase by its
// parity, and a fresh barrier counts as past the phase of parity 1.
//
// Waits and arrivals keep their default scope, the block, also where other blocks arrive: what those barriers hand over moves
// through the async proxy, and the cluster's scope would cost a fence and an invalidation of the L1 cache for each call.
DEV void mbar_init(smem_ptr bar, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(arrivals) : "memory");
}
// Makes new barriers known to bulk copies and other blocks; a barrier of the block or cluster follows.
DEV void mbar_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void mbar_arrive(smem_ptr bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory"); }
DEV void mbar_arrive_expect_tx(smem_ptr bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
DEV void mbar_expect_tx(smem_ptr bar, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
// Arrives at the same place in the block with this rank.
DEV void mbar_arrive_cluster(smem_ptr bar, u32 rank) {
    asm volatile("{\n .reg .b32 a;\n mapa.shared::cluster.u32 a, %0, %1;\n mbarrier.arrive.shared::cluster.b64 _, [a];\n}"
        :: "r"(bar), "r"(rank) : "memory");
}
DEV void mbar_wait(smem_ptr bar, u32 parity) {
    asm volatile("{\n .reg .pred p;\n again:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @!p bra again;\n}"
        :: "r"(bar), "r"(parity) : "memory");
}
