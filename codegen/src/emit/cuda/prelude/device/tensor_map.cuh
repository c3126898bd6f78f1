// A tensor map: opaque, made by the driver, a `const __grid_constant__` parameter.
struct alignas(64) TensorMap { u64 words[16]; };
DEV void tma_prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory"); }
