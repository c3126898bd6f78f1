// Smaller and larger integer.
template <typename T> DEV T min_of(T a, T b) { return b < a ? b : a; }
template <typename T> DEV T max_of(T a, T b) { return a < b ? b : a; }
