// fp8 by the hardware's conversions (compute capability 8.9 and newer): nearest even, saturating, NaN stays NaN.
DEV u16 f32_to_e4m3_x2(float lo, float hi) {
    u16 r; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo)); return r;
}
DEV u16 f32_to_e5m2_x2(float lo, float hi) {
    u16 r; asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo)); return r;
}
DEV e4m3 f32_to_e4m3(float x) { return (e4m3)f32_to_e4m3_x2(x, 0.0f); }
DEV e5m2 f32_to_e5m2(float x) { return (e5m2)f32_to_e5m2_x2(x, 0.0f); }
DEV float e4m3_to_f32(e4m3 x) {
    float r;
    asm("{\n .reg .b32 h;\n .reg .b16 lo, hi;\n cvt.rn.f16x2.e4m3x2 h, %1;\n mov.b32 {lo, hi}, h;\n cvt.f32.f16 %0, lo;\n}"
        : "=f"(r) : "h"((u16)x));
    return r;
}
DEV float e5m2_to_f32(e5m2 x) {
    float r;
    asm("{\n .reg .b32 h;\n .reg .b16 lo, hi;\n cvt.rn.f16x2.e5m2x2 h, %1;\n mov.b32 {lo, hi}, h;\n cvt.f32.f16 %0, lo;\n}"
        : "=f"(r) : "h"((u16)x));
    return r;
}
template <int N> DEV void f32_to_e4m3(e4m3 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i + 3 < N; i += 4) {
        reinterpret_cast<u32*>(r)[i / 4] = f32_to_e4m3_x2(x[i], x[i + 1]) | (u32)f32_to_e4m3_x2(x[i + 2], x[i + 3]) << 16;
    }
    if constexpr (N == 2) reinterpret_cast<u16*>(r)[0] = f32_to_e4m3_x2(x[0], x[1]);
}
template <int N> DEV void f32_to_e5m2(e5m2 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i + 3 < N; i += 4) {
        reinterpret_cast<u32*>(r)[i / 4] = f32_to_e5m2_x2(x[i], x[i + 1]) | (u32)f32_to_e5m2_x2(x[i + 2], x[i + 3]) << 16;
    }
    if constexpr (N == 2) reinterpret_cast<u16*>(r)[0] = f32_to_e5m2_x2(x[0], x[1]);
}
