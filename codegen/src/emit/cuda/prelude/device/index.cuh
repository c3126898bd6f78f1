// Division of indices rounds down; the divisor is positive.
template <typename T> DEV T floor_div(T a, T b) { return a / b - (a % b < 0); }
template <typename T> DEV T floor_mod(T a, T b) { const T r = a % b; return r < 0 ? r + b : r; }
