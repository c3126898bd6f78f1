// bf16: nearest even; NaN becomes 0x7fff.
DEV float bf16_to_f32(bf16 x) { return __uint_as_float((u32)x << 16); }
DEV bf16 f32_to_bf16(float x) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
template <int N> DEV void f32_to_bf16(bf16 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(reinterpret_cast<u32*>(r)[i / 2]) : "f"(x[i + 1]), "f"(x[i]));
    }
}
