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
