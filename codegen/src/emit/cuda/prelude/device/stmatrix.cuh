// Fragments of 16-bit values to shared memory: lane 8 m + r names row r of matrix m.
DEV u32 pack_bf16(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
DEV void stmatrix_x2(smem_ptr row, u32 a, u32 b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" :: "r"(row), "r"(a), "r"(b) : "memory");
}
DEV void stmatrix_x4(smem_ptr row, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
        :: "r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
