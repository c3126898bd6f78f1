// Smaller and larger integer. Signed ones are compared as unsigned: ptxas 13.0 makes one instruction of max(max(a, -b), c)
// and loses the sign of b; with unsigned numbers it does not.
template <typename T> DEV T min_of(T a, T b) { return b < a ? b : a; }
template <typename T> DEV T max_of(T a, T b) { return a < b ? b : a; }
template <> DEV int min_of<int>(int a, int b) { return (int)(min_of((u32)a ^ 1u << 31, (u32)b ^ 1u << 31) ^ 1u << 31); }
template <> DEV int max_of<int>(int a, int b) { return (int)(max_of((u32)a ^ 1u << 31, (u32)b ^ 1u << 31) ^ 1u << 31); }
