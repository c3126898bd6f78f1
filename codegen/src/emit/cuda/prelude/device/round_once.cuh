// Integers as f32 with the last bit set where they do not fit, so that narrower floats round as from the integer itself.
DEV float i32_to_odd(int x) { const float f = __int2float_rz(x); return __uint_as_float(__float_as_uint(f) | ((int)f != x)); }
DEV float u32_to_odd(u32 x) { const float f = __uint2float_rz(x); return __uint_as_float(__float_as_uint(f) | ((u32)f != x)); }
DEV float i64_to_odd(i64 x) { const float f = __ll2float_rz(x); return __uint_as_float(__float_as_uint(f) | ((i64)f != x)); }
