// A constant as it is.
DEV float opaque(float x) { return x; }
