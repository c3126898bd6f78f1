// Integer operations that are total: sums wrap, division by zero gives zero, long shifts shift everything out.
DEV int wrap_add(int a, int b) { return (int)((u32)a + (u32)b); }
DEV int wrap_sub(int a, int b) { return (int)((u32)a - (u32)b); }
DEV int wrap_mul(int a, int b) { return (int)((u32)a * (u32)b); }
DEV i64 wrap_add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEV i64 wrap_sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
DEV i64 wrap_mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DEV u32 div_or_zero(u32 a, u32 b) { return b == 0 ? 0 : a / b; }
DEV u32 rem_or_zero(u32 a, u32 b) { return b == 0 ? 0 : a % b; }
DEV int div_or_zero(int a, int b) { return b == 0 ? 0 : b == -1 ? wrap_sub(0, a) : a / b; }
DEV int rem_or_zero(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }
DEV i64 div_or_zero(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? wrap_sub((i64)0, a) : a / b; }
DEV i64 rem_or_zero(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }
DEV u32 shift_left(u32 a, u32 n) { return n < 32 ? a << n : 0; }
DEV int shift_left(int a, u32 n) { return n < 32 ? (int)((u32)a << n) : 0; }
DEV i64 shift_left(i64 a, u64 n) { return n < 64 ? (i64)((u64)a << n) : 0; }
DEV u32 shift_right(u32 a, u32 n) { return n < 32 ? a >> n : 0; }
DEV int shift_right(int a, u32 n) { return a >> (n < 31 ? n : 31); }
DEV i64 shift_right(i64 a, u64 n) { return a >> (n < 63 ? n : 63); }
