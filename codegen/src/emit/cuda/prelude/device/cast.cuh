// Float to integer: towards zero, saturating, NaN gives zero.
DEV int f32_to_i32(float x) { return __float2int_rz(x); }
DEV u32 f32_to_u32(float x) { return __float2uint_rz(x); }
DEV i64 f32_to_i64(float x) { return x == x ? __float2ll_rz(x) : 0; }
DEV i8 f32_to_i8(float x) { const int v = __float2int_rz(x); return (i8)(v < -128 ? -128 : v > 127 ? 127 : v); }
DEV u8 f32_to_u8(float x) { const u32 v = __float2uint_rz(x); return (u8)(v > 255 ? 255 : v); }
