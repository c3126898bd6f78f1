// f16: nearest even, overflow gives infinity; NaN becomes 0x7fff.
DEV float f16_to_f32(f16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r; }
DEV f16 f32_to_f16(float x) { f16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
template <int N> DEV void f32_to_f16(f16 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(reinterpret_cast<u32*>(r)[i / 2]) : "f"(x[i + 1]), "f"(x[i]));
    }
}
