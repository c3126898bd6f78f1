// gemm_bf16 (<text>:1:8): T = bf16
// Names of the element types. Floats narrower than 32 bits are bit patterns; arithmetic happens in f32.
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef unsigned int u32;
typedef long long i64; typedef unsigned long long u64;
typedef u16 bf16; typedef u16 f16; typedef u8 e4m3; typedef u8 e5m2; typedef u8 e8m0;
#define DEV __device__ __forceinline__

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

// Barriers of some of a block's warps. Barrier 0 is that of __syncthreads; `threads` is a multiple of 32.
DEV void named_barrier_sync(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
// Counts as present without waiting for the others.
DEV void named_barrier_arrive(u32 id, u32 threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"); }

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

// What this thread wrote to shared memory becomes visible to bulk copies and matrix instructions.
DEV void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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

// Launches that overlap: results of the previous grid are there after the wait; the next grid may start from the call on.
DEV void grid_wait_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEV void grid_allow_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Fragments of 16-bit values to shared memory: lane 8 m + r names row r of matrix m.
DEV u32 pack_bf16(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
DEV void stmatrix_x2(smem_ptr row, u32 a, u32 b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" :: "r"(row), "r"(a), "r"(b) : "memory");
}
DEV void stmatrix_x4(smem_ptr row, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
        :: "r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

DEV void wgmma_m64n128k16_bf16_bt(float (&d)[64], u64 a, u64 b, int add) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %66, 0;\n "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 1;\n}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(add));
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_bf16_bf16(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
               const __grid_constant__ TensorMap map_d, int m, int k, int n) {
    extern __shared__ __align__(1024) u8 shared[];
    const int block_warp = warp_uniform(threadIdx.x / 32);
    const smem_ptr base = smem_address(shared);
    const smem_ptr operands_full = base + 163840, operands_empty = base + 163856;
    const u32 units_bx = (m + 127) / 128;
    const u32 units_by = (n + 127) / 128;
    const u32 units = units_bx * units_by;

    if (block_warp == 8 && elect_one()) {
        tma_prefetch_map(&map_a);
        tma_prefetch_map(&map_b);
        tma_prefetch_map(&map_d);
        for (int s = 0; s < 2; ++s) {
            mbar_init(operands_full + 8 * s, 1);  // the producer, and the bytes of its copies
            mbar_init(operands_empty + 8 * s, 8);  // every warp that reads the slot
        }
        mbar_init_fence();
    }
    __syncthreads();

    if (block_warp >= 8) {
        // ======== load: 4 warps ========
        registers_shrink<40>();
        if (block_warp == 8 && elect_one()) {
            u32 operands_slot = 0, operands_parity = 0;
            grid_wait_previous();

            // <text>:31:9: tiles of this block
            #pragma unroll 1
            for (u32 unit = blockIdx.x; unit < units; unit += gridDim.x) {
                const u32 panel = unit / (8 * units_by), in_panel = unit % (8 * units_by);
                const u32 panel_rows = min_of<u32>(8, units_bx - 8 * panel);
                const int mi = (int)(8 * panel + in_panel % panel_rows);
                const int ni = (int)(in_panel / panel_rows);

                // <text>:32:11: loop
                #pragma unroll 1
                for (int ki = 0; ki < (k + 127) / 128; ++ki) {
                    const int s = operands_slot;
                    mbar_wait(operands_empty + 8 * operands_slot, operands_parity ^ 1);
                    mbar_arrive_expect_tx(operands_full + 8 * operands_slot, 65536);

                    // <text>:36:13: copy [128, 128]
                    tma_load_2d(base + s * 32768, &map_a, operands_full + 8 * operands_slot, ki * 128, mi * 128);
                    tma_load_2d(base + s * 32768 + 16384, &map_a, operands_full + 8 * operands_slot, ki * 128 + 64,
                                mi * 128);

                    // <text>:39:13: copy [128, 128]
                    tma_load_2d_hint(base + s * 32768 + 65536, &map_b, operands_full + 8 * operands_slot, ni * 128,
                                     ki * 128, l2_evict_last());
                    tma_load_2d_hint(base + s * 32768 + 81920, &map_b, operands_full + 8 * operands_slot,
                                     ni * 128 + 64, ki * 128, l2_evict_last());
                    if (++operands_slot == 2) { operands_slot = 0; operands_parity ^= 1; }
                }
            }
        }
        __syncwarp();
    } else {
        // ======== math: 2 of 4 warps ========
        registers_grow<232>();
        const int group = block_warp / 4;
        const int warp = block_warp % 4;
        const int lane = threadIdx.x % 32;
        const int tid = warp * 32 + lane;
        u32 operands_slot = 0, operands_parity = 0;
        grid_wait_previous();

        // <text>:47:9: tiles of this block
        #pragma unroll 1
        for (u32 unit = blockIdx.x; unit < units; unit += gridDim.x) {
            const u32 panel = unit / (8 * units_by), in_panel = unit % (8 * units_by);
            const u32 panel_rows = min_of<u32>(8, units_bx - 8 * panel);
            const int mi = (int)(8 * panel + in_panel % panel_rows);
            const int ni = (int)(in_panel / panel_rows);
            float acc[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) acc[i] = 0.0f;

            // <text>:52:11: loop
            #pragma unroll 1
            for (int ki = 0; ki < (k + 127) / 128; ++ki) {
                const int s = operands_slot;
                mbar_wait(operands_full + 8 * operands_slot, operands_parity);

                // <text>:56:13: wgmma += [64, 128] x [128, 128], bf16 x bf16
                {
                    const u64 a_tile = wgmma_tile(base) + (u32)(s * 2048 + group * 512);
                    const u64 b_tile = wgmma_tile_across(base + 65536, 16384) + (u32)(s * 2048);
                    wgmma_pin(acc);
                    wgmma_begin();
                    #pragma unroll
                    for (int step = 0; step < 8; ++step) {
                        wgmma_m64n128k16_bf16_bt(acc, a_tile + step / 4 * 1024 + step % 4 * 2, b_tile + step * 128, 1);
                    }
                    wgmma_commit();
                    wgmma_wait<0>();
                    wgmma_pin(acc);
                    if (lane == 0) mbar_arrive(operands_empty + 8 * operands_slot);
                }
                if (++operands_slot == 2) { operands_slot = 0; operands_parity ^= 1; }
            }
            if (tid < 2) tma_store_wait_read<0>();
            named_barrier_sync(1 + group, 128);  // staging: the last tile's store has read it

            // <text>:61:11: parallel [64, 128]
            {
                const int row = warp * 16 + lane % 16;
                const smem_ptr to = base + group * 16384 + row * 128 + 131072;
                const u32 flip = (row % 8 ^ lane / 16) * 16;
                #pragma unroll
                for (int p = 0; p < 8; ++p) {
                    float d_s_v[8];
                    #pragma unroll
                    for (int q = 0; q < 4; ++q) {
                        const int s = p * 4 + q;
                        #pragma unroll
                        for (int v = 0; v < 2; ++v) {
                            d_s_v[q * 2 + v] = acc[s * 2 + v];
                        }
                    }
                    stmatrix_x4(to + p / 4 * 8192 + (p % 4 * 32 ^ flip), pack_bf16(d_s_v[0], d_s_v[1]),
                                pack_bf16(d_s_v[2], d_s_v[3]), pack_bf16(d_s_v[4], d_s_v[5]),
                                pack_bf16(d_s_v[6], d_s_v[7]));
                }
            }
            async_proxy_fence();  // staging: written by threads, read by the copy engine
            named_barrier_sync(1 + group, 128);  // staging is complete

            // <text>:70:11: copy [64, 128] out
            if (tid < 2) {
                tma_store_2d(&map_d, base + group * 16384 + tid * 8192 + 131072, ni * 128 + tid * 64, mi * 128 + group * 64);
                tma_store_commit();
            }
            __syncwarp();
        }
        if (tid < 2) tma_store_wait_read<0>();
    }
}
