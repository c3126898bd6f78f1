// A constant the compiler does not see: NVRTC 13.0 makes a choice of -0 and -1 the float of an integer, which has no -0;
// others take 0 - (float)i for -(float)i.
DEV float opaque(float x) { asm("" : "+f"(x)); return x; }
