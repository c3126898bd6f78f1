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
