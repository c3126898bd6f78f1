// gemm_fp8_few (<text>:1:8): O = bf16
// Names of the element types. Floats narrower than 32 bits are bit patterns; arithmetic happens in f32.
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef unsigned int u32;
typedef long long i64; typedef unsigned long long u64;
typedef u16 bf16; typedef u16 f16; typedef u8 e4m3; typedef u8 e5m2; typedef u8 e8m0;
#define DEV __device__ __forceinline__

// bf16: nearest even; NaN becomes 0x7fff.
DEV float bf16_to_f32(bf16 x) { return __uint_as_float((u32)x << 16); }
// The same for a tile that waits in registers: the compiler may not share the result between uses, so what stays alive is
// the packed bf16 and not twice as many f32.
DEV float widen(bf16 x) { float r; asm volatile("mov.b32 %0, {0, %1};" : "=f"(r) : "h"(x)); return r; }
DEV bf16 f32_to_bf16(float x) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
template <int N> DEV void f32_to_bf16(bf16 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(reinterpret_cast<u32*>(r)[i / 2]) : "f"(x[i + 1]), "f"(x[i]));
    }
}

// Smaller and larger integer. Signed ones are compared as unsigned: ptxas 13.0 makes one instruction of max(max(a, -b), c)
// and loses the sign of b; with unsigned numbers it does not.
template <typename T> DEV T min_of(T a, T b) { return b < a ? b : a; }
template <typename T> DEV T max_of(T a, T b) { return a < b ? b : a; }
template <> DEV int min_of<int>(int a, int b) { return (int)(min_of((u32)a ^ 1u << 31, (u32)b ^ 1u << 31) ^ 1u << 31); }
template <> DEV int max_of<int>(int a, int b) { return (int)(max_of((u32)a ^ 1u << 31, (u32)b ^ 1u << 31) ^ 1u << 31); }

// A warp: one lane for all of it, and values that are the same in all lanes.
DEV u32 lane_index() { u32 x; asm("mov.u32 %0, %%laneid;" : "=r"(x)); return x; }
// Tells the compiler that all lanes hold the same value.
DEV u32 warp_uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }
// True in one lane; all lanes of the warp ask.
DEV bool elect_one() {
    u32 chosen;
    asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen != 0;
}

// Shared memory by 32-bit addresses of the shared window, as barriers, bulk copies and matrix descriptors take it.
typedef u32 smem_ptr;
DEV smem_ptr smem_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV float smem_load(smem_ptr p) { float x; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(p) : "memory"); return x; }
DEV float4 smem_load4(smem_ptr p) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(p) : "memory");
    return v;
}
DEV void smem_store4(smem_ptr p, float x, float y, float z, float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" :: "r"(p), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
DEV void smem_store2(smem_ptr p, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(p), "f"(x), "f"(y) : "memory");
}

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

// A tensor map: opaque, made by the driver, a `const __grid_constant__` parameter.
struct alignas(64) TensorMap { u64 words[16]; };
DEV void tma_prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory"); }

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

// Registers that warps give back to the block or take from it, in multiples of 8 from 24 to 256, for whole warpgroups.
template <int N> DEV void registers_grow() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> DEV void registers_shrink() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }

DEV void wgmma_m64n16k32_e4m3(float (&d)[8], u64 a, u64 b, int add) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %10, 0;\n "
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, %8, %9, p, 1, 1;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "l"(a), "l"(b), "r"(add));
}

extern "C" __global__ void __launch_bounds__(256, 1)
gemm_fp8_few_bf16(const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_a,
                  const __grid_constant__ TensorMap map_sa, const float* __restrict__ sb, bf16* __restrict__ d, int m,
                  int k, int n, int nb, int kb, int ldd) {
    extern __shared__ __align__(1024) u8 shared[];
    const int rank = cluster_rank();
    const int block_warp = warp_uniform(threadIdx.x / 32);
    float* const column_scales = (float*)(shared + 51200);
    float* const parts = (float*)(shared + 51840);
    const smem_ptr base = smem_address(shared);
    const smem_ptr operands_full = base + 64128, operands_empty = base + 64168;
    const smem_ptr parts_full = base + 64208, parts_free = base + 64216;
    const u32 units_bx = (n + 63) / 64;
    const u32 units_by = (m + 15) / 16;
    const u32 units = units_bx * units_by;

    if (block_warp == 4 && elect_one()) {
        tma_prefetch_map(&map_b);
        tma_prefetch_map(&map_a);
        tma_prefetch_map(&map_sa);
        for (int s = 0; s < 5; ++s) {
            mbar_init(operands_full + 8 * s, 1);  // the producer, and the bytes of its copies
            mbar_init(operands_empty + 8 * s, 4);  // every warp that reads the slot
        }
        mbar_init(parts_full, 1);  // the first block, and the bytes of the other parts
        mbar_init(parts_free, 4);  // every warp that reads the parts
        mbar_init_fence();
    }
    __syncthreads();
    cluster_arrive_relaxed();  // no block copies into another before its barriers are ready
    cluster_wait();

    if (block_warp >= 4) {
        // ======== load: 4 warps ========
        registers_shrink<40>();
        if (block_warp == 4 && elect_one()) {
            u32 operands_slot = 0, operands_parity = 0;

            // <text>:34:7: tiles of this block
            #pragma unroll 1
            for (u32 unit = blockIdx.x / 4; unit < units; unit += gridDim.x / 4) {
                const u32 panel = unit / (8 * units_by), in_panel = unit % (8 * units_by);
                const u32 panel_rows = min_of<u32>(8, units_bx - 8 * panel);
                const int mi = (int)(8 * panel + in_panel % panel_rows);
                const int ni = (int)(in_panel / panel_rows);

                // <text>:34:7: loop
                #pragma unroll 1
                for (int ki = 0; ki < ((k + 127) / 128 + 3) / 4; ++ki) {
                    const int slot = operands_slot;
                    mbar_wait(operands_empty + 8 * operands_slot, operands_parity ^ 1);
                    mbar_arrive_expect_tx(operands_full + 8 * operands_slot, 10304);

                    // <text>:37:9: copy [64, 128]
                    tma_load_2d(base + slot * 8192, &map_b, operands_full + 8 * operands_slot,
                                (rank / 2 * (((k + 127) / 128 + 3) / 4 * 2) + rank % 2 + ki * 2) * 128, mi * 64);

                    // <text>:40:9: copy [16, 128]
                    tma_load_2d(base + slot * 2048 + 40960, &map_a, operands_full + 8 * operands_slot,
                                (rank / 2 * (((k + 127) / 128 + 3) / 4 * 2) + rank % 2 + ki * 2) * 128, ni * 16);

                    // <text>:43:9: copy [16, 1]
                    tma_load_2d(base + slot * 128 + 51200, &map_sa, operands_full + 8 * operands_slot, ni * 16,
                                rank / 2 * (((k + 127) / 128 + 3) / 4 * 2) + rank % 2 + ki * 2);
                    if (++operands_slot == 5) { operands_slot = 0; operands_parity ^= 1; }
                }
            }
        }
        __syncwarp();
    } else {
        // ======== math: 4 warps ========
        registers_shrink<232>();
        const int warp = block_warp;
        const int lane = threadIdx.x % 32;
        const int tid = warp * 32 + lane;
        u32 operands_slot = 0, operands_parity = 0;
        u32 parts_parity = 0;

        // <text>:34:7: tiles of this block
        #pragma unroll 1
        for (u32 unit = blockIdx.x / 4; unit < units; unit += gridDim.x / 4) {
            const u32 panel = unit / (8 * units_by), in_panel = unit % (8 * units_by);
            const u32 panel_rows = min_of<u32>(8, units_bx - 8 * panel);
            const int mi = (int)(8 * panel + in_panel % panel_rows);
            const int ni = (int)(in_panel / panel_rows);
            float acc[8];

            // <text>:33:7: parallel [64, 16]
            #pragma unroll
            for (int s = 0; s < 4; ++s) {
                #pragma unroll
                for (int v = 0; v < 2; ++v) {
                    acc[s * 2 + v] = 0.0f;
                }
            }

            // <text>:34:7: loop
            #pragma unroll 4
            for (int ki = 0; ki < ((k + 127) / 128 + 3) / 4; ++ki) {
                const float sb_i = mi * 64 / 128 < nb && rank / 2 * (((k + 127) / 128 + 3) / 4 * 2) + rank % 2 + ki * 2 < kb ? sb[mi * 64 / 128 * kb + rank / 2 * (((k + 127) / 128 + 3) / 4 * 2) + rank % 2 + ki * 2] : 0.0f;
                const int slot = operands_slot;
                mbar_wait(operands_full + 8 * operands_slot, operands_parity);

                // <text>:43:9: wgmma += [64, 128] x [128, 16], e4m3 x e4m3
                {
                    const u64 a_tile = wgmma_tile(base) + (u32)(slot * 512);
                    const u64 b_tile = wgmma_tile(base + 40960) + (u32)(slot * 128);
                    float column_scale[4];
                    #pragma unroll
                    for (int c = 0; c < 4; ++c) {
                        const int j = c / 2 * 8 + lane % 4 * 2 + c % 2;
                        const float column_scales_i = column_scales[slot * 32 + j];
                        column_scale[c] = column_scales_i;
                    }
                    float part[8];
                    float row_scale[2];
                    #pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        row_scale[h] = sb_i;
                    }
                    wgmma_pin(part);
                    wgmma_begin();
                    #pragma unroll
                    for (int step = 0; step < 4; ++step) {
                        wgmma_m64n16k32_e4m3(part, a_tile + step * 2, b_tile + step * 2, step != 0);
                    }
                    wgmma_commit();
                    wgmma_wait<0>();
                    wgmma_pin(part);
                    if (lane == 0) mbar_arrive(operands_empty + 8 * operands_slot);
                    #pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        const float f = row_scale[0] * column_scale[c * 2];
                        acc[c * 4] = __fmaf_rn(f, part[c * 4], acc[c * 4]);
                        const float f2 = row_scale[0] * column_scale[c * 2 + 1];
                        acc[c * 4 + 1] = __fmaf_rn(f2, part[c * 4 + 1], acc[c * 4 + 1]);
                        const float f3 = row_scale[1] * column_scale[c * 2];
                        acc[c * 4 + 2] = __fmaf_rn(f3, part[c * 4 + 2], acc[c * 4 + 2]);
                        const float f4 = row_scale[1] * column_scale[c * 2 + 1];
                        acc[c * 4 + 3] = __fmaf_rn(f4, part[c * 4 + 3], acc[c * 4 + 3]);
                    }
                }
                if (++operands_slot == 5) { operands_slot = 0; operands_parity ^= 1; }
            }

            // <text>:34:7: the sum of 4 parts, one after another
            {
                const int part = rank;
                const smem_ptr inbox = base + tid * 16 + 51840;
                if (part == 0) {
                    if (warp == 0 && elect_one()) mbar_arrive_expect_tx(parts_full, 12288);
                    mbar_wait(parts_full, parts_parity);
                }
                if (part != 0) {
                    mbar_wait(parts_free, parts_parity ^ 1);  // the last tile's parts have been read
                    const smem_ptr full = cluster_address(parts_full, 0);
                    #pragma unroll
                    for (int q = 0; q < 2; ++q) {
                        const float4 v = {acc[4 * q], acc[4 * q + 1], acc[4 * q + 2], acc[4 * q + 3]};
                        cluster_send4(cluster_address(inbox + (part - 1) * 4096 + q * 2048, 0), full, v);
                    }
                }
                if (part == 0) {
                    #pragma unroll
                    for (int e = 0; e < 8; ++e) acc[e] = 0.0f + acc[e];
                    for (int from = 0; from < 3; ++from) {
                        #pragma unroll
                        for (int q = 0; q < 2; ++q) {
                            const float4 v = smem_load4(inbox + from * 4096 + q * 2048);
                            acc[4 * q] += v.x;
                            acc[4 * q + 1] += v.y;
                            acc[4 * q + 2] += v.z;
                            acc[4 * q + 3] += v.w;
                        }
                    }
                    __syncwarp();
                    if (lane < 4) mbar_arrive_cluster(parts_free, lane);
                }
                parts_parity ^= 1;
            }
            if (rank == 0) {
                // <text>:58:5: parallel [64, 16]
                bf16* const d_at = d + ni * 16 * ldd + mi * 64;
                #pragma unroll
                for (int s = 0; s < 4; ++s) {
                    const int i = warp * 16 + s % 2 * 8 + lane / 4;
                    const int j = s / 2 * 8 + lane % 4 * 2;
                    #pragma unroll
                    for (int v = 0; v < 2; ++v) {
                        if (ni * 16 + j + v < m && mi * 64 + i < n) d_at[(j + v) * ldd + i] = f32_to_bf16(acc[s * 2 + v]);
                    }
                }
            }
        }
    }
    cluster_arrive_relaxed();  // a block outlives its neighbours' arrivals and copies into it
    cluster_wait();
}
