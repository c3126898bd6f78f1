// All blocks of a grid that runs as a whole meet. The first block adds what the others leave up to 2^31 and each other one
// adds 1, so the top bit changes exactly when all have arrived and the low bits are 0 again.
DEV void grid_sync(u32* arrivals) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 blocks = gridDim.x * gridDim.y * gridDim.z;
        const bool first = blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0;
        __threadfence();
        const u32 before = atomicAdd(arrivals, first ? 0x80000000u - (blocks - 1) : 1u);
        while (((before ^ *(volatile u32*)arrivals) & 0x80000000u) == 0) {}
        __threadfence();
    }
    __syncthreads();
}
