// Sums of narrow floats, carried in f32 and rounded after every step.
struct SumBf16 { static DEV float apply(float a, float b) { return bf16_to_f32(f32_to_bf16(a + b)); } };
struct SumF16 { static DEV float apply(float a, float b) { return f16_to_f32(f32_to_f16(a + b)); } };
