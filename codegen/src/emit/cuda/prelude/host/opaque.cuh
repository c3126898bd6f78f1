// A constant the compiler does not see.
DEV float opaque(float x) { asm("" : "+m"(x)); return x; }
